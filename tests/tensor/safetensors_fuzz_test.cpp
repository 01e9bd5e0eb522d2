// Mutants of valid files: opening one either throws InputError, or gives tensors whose every byte
// can be read. DIPTYCH_FUZZ_ITERATIONS sets how many; a failure names the iteration, which alone
// decides the mutant.
#include <array>

#include "lib/tensor/safetensors.h"
#include "tests/tensor/fuzz_support.h"

namespace diptych {
namespace {

using fuzz::below;
using fuzz::Random;

struct Parts {
  std::string header, data;
};

std::vector<Parts> seeds() {
  return {
      {"{}", ""},
      {R"({"__metadata__":{"format":"pt","k":"\u00e9\n"},"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})",
       std::string(24, 'w')},
      {R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"F32","shape":[2],"data_offsets":[3,11]},)"
       R"("c":{"dtype":"BOOL","shape":[],"data_offsets":[11,12]},"e":{"dtype":"I64","shape":[0,7],"data_offsets":[12,12]}})",
       std::string("\x03\x02\x01", 3) + std::string(9, '\0')},
      {R"({"x":{"dtype":"BF16","shape":[4,1,2],"data_offsets":[8,24]},"y":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
       R"("z":{"dtype":"F8_E4M3","shape":[5],"data_offsets":[24,29]},"q":{"dtype":"U16","shape":[2],"data_offsets":[29,33]}}    )",
       std::string(33, 'x')}};
}

// Words of the grammar and numbers on borders.
std::string_view fragment(Random& random) {
  static constexpr std::array<std::string_view, 36> kFragments = {
      "{",
      "}",
      "[",
      "]",
      ",",
      ":",
      "\"",
      "\\",
      "\\u0000",
      "\\ud800",
      "null",
      "true",
      "-",
      "0",
      "1",
      "2",
      "3",
      "4",
      "8",
      "-1",
      "1.5",
      "1e400",
      "4294967296",
      "9223372036854775807",
      "9223372036854775808",
      "18446744073709551615",
      "99999999999999999999999",
      "\"dtype\"",
      "\"shape\"",
      "\"data_offsets\"",
      "\"__metadata__\"",
      "\"F32\"",
      "\"BOOL\"",
      "\"F4\"",
      "\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},",
      "[[[["};
  return kFragments[below(random, kFragments.size())];
}

void replace_number(std::string& text, Random& random) {
  const auto begin = text.find_first_of("0123456789", below(random, text.size()));
  if (begin == std::string::npos) return;
  const auto end = std::min(text.find_first_not_of("0123456789", begin), text.size());
  text.replace(begin, end - begin,
               random() % 2 == 0 ? std::to_string(random() % 40) : std::string(fragment(random)));
}

void mutate(std::string& text, Random& random) {
  const std::size_t at = below(random, text.size() + 1), count = below(random, 12);
  switch (random() % 8) {
    case 0:
      if (at < text.size()) text[at] = static_cast<char>(random());
      break;
    case 1:
      if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << random() % 8));
      break;
    case 2:
      text.erase(at, count);
      break;
    case 3:
      text.insert(at, fragment(random));
      break;
    case 4:
      text.insert(at, text.substr(below(random, text.size()), 8 * count));
      break;
    case 5:
      text.resize(at);
      break;
    default:
      replace_number(text, random);
  }
}

std::string mutant(const Parts& seed, Random& random) {
  Parts parts = seed;
  const std::size_t header_changes = below(random, 4);
  for (std::size_t i = 0; i < header_changes; ++i) mutate(parts.header, random);
  if (random() % 4 == 0) mutate(parts.data, random);
  std::string bytes = file_bytes(parts.header, parts.data);
  if (random() % 8 == 0) {  // the length field, or anything, without mending the rest
    bytes.replace(0, 8, length_field(random() >> (random() % 64)));
  } else if (random() % 8 == 0) {
    mutate(bytes, random);
  }
  return bytes;
}

TEST_CASE("SafetensorsFile: mutants") {
  const std::uint64_t iterations = fuzz::iterations();
  const test::Folder folder;
  const auto path = folder / "mutant.safetensors";
  const auto originals = seeds();
  std::uint64_t taken = 0;
  for (std::uint64_t i = 0; i < iterations; ++i) {
    CAPTURE(i);
    Random random(i);
    std::filesystem::remove(path);  // ext4 syncs a file that is truncated and written again
    write_file(path, mutant(originals[below(random, originals.size())], random));
    if (fuzz::read_to_the_end(path)) ++taken;
  }
  // Both outcomes must be common, else the mutator tests nothing.
  MESSAGE(taken, " of ", iterations, " mutants were valid files");
  CHECK(taken > iterations / 20);
  CHECK(taken < iterations / 2);
}

}  // namespace
}  // namespace diptych
