// Mutants of valid files: opening one either throws InputError, or gives tensors whose every byte
// can be read. DIPTYCH_FUZZ_ITERATIONS sets how many; a failure names the iteration, which alone
// decides the mutant.
#include <array>

#include "tests/tensor/fuzz_support.h"
#include "tests/tensor/pth_support.h"

namespace diptych {
namespace {

using fuzz::below;
using fuzz::Random;

std::vector<std::vector<pth::Record>> seeds() {
  const std::string ordered = "ccollections\nOrderedDict\n)R";
  return {{{"a/data.pkl", pth::dict("")}},
          {{"a/data.pkl", pth::dict(pth::text("w") + pth::tensor())},
           {"a/byteorder", "little"},
           {"a/data/0", pth::kSixFloats}},
          {{"m/data.pkl", "\x80\2" + ordered + "(" + pth::text("x") + pth::tensor() + "q\1" +
                              pth::text("y") +
                              pth::tensor({.storage = "7",
                                           .type = "BoolStorage",
                                           .elements = 4,
                                           .offset = 1,
                                           .shape = {3},
                                           .strides = {1}}) +
                              pth::text("z") + "h\1u}" + pth::text("_metadata") + ordered + "sb."},
           {"m/data/0", pth::kSixFloats, 0, 0, 0, true},
           {"m/data/7", std::string(4, '\1')},
           {"m/version", "3\n"}}};
}

// Opcodes, words of the format and numbers on borders.
std::string fragment(Random& random) {
  static const std::array<std::string, 24> kFragments = {
      ".",
      "(",
      "t",
      "u",
      "s",
      "R",
      "Q",
      "b",
      "N",
      "}",
      ")",
      "\x85",
      "\x86",
      "q\1",
      "h\1",
      pth::integer(-1),
      pth::integer(std::numeric_limits<std::int64_t>::max()),
      pth::text("t"),
      pth::tensor(),
      "ctorch\nHalfStorage\n",
      "cos\nsystem\n",
      "PK\5\6",
      "PK\1\2",
      std::string(4, '\xFF')};
  return kFragments[below(random, kFragments.size())];
}

void mutate(std::string& bytes, Random& random) {
  const std::size_t at = below(random, bytes.size() + 1), count = below(random, 12);
  switch (random() % 7) {
    case 0:
      if (at < bytes.size()) bytes[at] = static_cast<char>(random());
      break;
    case 1:
      if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
      break;
    case 2:
      bytes.erase(at, count);
      break;
    case 3:
      bytes.insert(at, fragment(random));
      break;
    case 4:
      bytes.insert(at, bytes.substr(below(random, bytes.size()), 8 * count));
      break;
    case 5: {
      const std::string word = fragment(random);
      bytes.replace(at, word.size(), word);
      break;
    }
    default:
      bytes.resize(at);
  }
}

std::string mutant(std::vector<pth::Record> records, Random& random) {
  for (std::size_t changes = below(random, 3); changes > 0; --changes) {
    pth::Record& record = records[below(random, records.size())];
    mutate(random() % 8 == 0 ? record.name : record.data, random);
  }
  std::string bytes = pth::zip(records, random() % 2 == 0);
  for (std::size_t changes = below(random, 3); changes > 0; --changes) mutate(bytes, random);
  return bytes;
}

TEST_CASE("PthFile: mutants") {
  const test::Folder folder;
  const auto path = folder / "mutant.pth";
  const auto originals = seeds();
  const std::uint64_t iterations = fuzz::iterations();
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
