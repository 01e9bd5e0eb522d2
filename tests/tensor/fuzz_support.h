// What the fuzz tests of tensor files share.
#pragma once

#include <cstdlib>
#include <random>

#include "lib/tensor/tensor_file.h"
#include "tests/tensor/support.h"

namespace diptych::fuzz {

using Random = std::mt19937_64;

inline std::size_t below(Random& random, std::size_t limit) {
  return limit == 0 ? 0 : random() % limit;
}

// DIPTYCH_FUZZ_ITERATIONS where it is set.
inline std::uint64_t iterations() {
  const char* asked = std::getenv("DIPTYCH_FUZZ_ITERATIONS");
  return asked != nullptr ? std::strtoull(asked, nullptr, 10) : 20'000;
}

// Returns whether the file was taken. Anything but InputError escapes and fails the test.
inline bool read_to_the_end(const std::filesystem::path& path) {
  try {
    const auto file = TensorFile::open(path);
    for (const auto& [name, entry] : file.entries()) {
      const Tensor view = file.view(name);
      REQUIRE(view.nbytes() == entry.end - entry.begin);
      REQUIRE(view.sizes() == at::IntArrayRef(entry.shape));
      const Tensor copy = view.clone();  // touches every byte
      REQUIRE(copy.view({-1}).numel() == view.numel());
    }
    return true;
  } catch (const InputError& error) {
    const std::string_view message = error.what();
    REQUIRE(message.starts_with(path.string() + ": "));
    REQUIRE(message.find('\n') == std::string_view::npos);
    REQUIRE(message.size() < 4000);
    return false;
  }
}

}  // namespace diptych::fuzz
