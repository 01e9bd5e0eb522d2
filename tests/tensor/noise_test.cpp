#include "lib/tensor/noise.h"

#include <cstdlib>

#include <doctest/doctest.h>

#include "lib/base/sha256.h"
#include "lib/tensor/safetensors.h"

namespace diptych {
namespace {

std::vector<float> values(const Tensor& tensor) {
  return {tensor.const_data_ptr<float>(), tensor.const_data_ptr<float>() + tensor.numel()};
}

std::string hash(const Tensor& tensor) {
  return sha256_hex(std::as_bytes(
      std::span(tensor.const_data_ptr<float>(), static_cast<std::size_t>(tensor.numel()))));
}

// The literals are torch.manual_seed(42); torch.randn(n); torch.randn(3) of PyTorch 2.11.0 in
// Python. From 16 elements on the generator is used in another way, with a tail that overlaps
// at 17.
TEST_CASE("randn: equals torch.randn, draw after draw") {
  struct Case {
    std::int64_t count;
    const char* sha256;
    std::vector<float> next;
  };
  const std::vector<Case> cases = {
      {5,
       "af33577995d9ae23a3bed3a80bfb2c79db2803eb7e55c090eca9e39fafc79a60",
       {-0x1.7d99bp-3F, 0x1.1aa658p+1F, -0x1.46a78cp-1F}},
      {16,
       "fc34b516db1204ac5504e9a714274f1068e6342fdddd0b2cde67221932271d34",
       {0x1.d8bcacp-2F, 0x1.11c46ep-2F, 0x1.11df06p-1F}},
      {17,
       "2ae700cddb7c7bef2727381a13feed04c35ad67793a9695d51da507ac5c359f2",
       {-0x1.245a08p-1F, -0x1.f32c2cp-1F, 0x1.7da1b4p-3F}},
      {1024,
       "d8607ea4ae1d5a731e50f615a12d198e0a1531cfe4e48cac3d228e521fd969f8",
       {0x1.b68ad2p-3F, 0x1.88cf0ep+0F, -0x1.888d04p+1F}}};
  for (const Case& c : cases) {
    CAPTURE(c.count);
    at::Generator generator = cpu_generator(42);
    CHECK(hash(randn({c.count}, generator)) == c.sha256);
    CHECK(values(randn({3}, generator)) == c.next);
  }
}

TEST_CASE("randn: literal values, shapes and a seed of 64 bits") {
  at::Generator generator = cpu_generator(42);
  CHECK(values(randn({5}, generator)) == std::vector<float>{0x1.58c55cp-2F, 0x1.07cd3ap-3F,
                                                            0x1.e02dcep-3F, 0x1.d7b8d8p-3F,
                                                            -0x1.1f7384p+0F});
  at::Generator zero = cpu_generator(0);
  const Tensor block = randn({2, 3, 5, 7}, zero);
  CHECK(block.sizes() == at::IntArrayRef{2, 3, 5, 7});
  CHECK(hash(block) == "e7d82d9055c88c5344752e8436322f55860ba1b13d47b428236cc0020a4612ea");
  CHECK(values(randn({1}, zero)) == std::vector<float>{0.854416012763977F});
  at::Generator large = cpu_generator((std::uint64_t{1} << 63) + 11);
  CHECK(values(randn({2, 3}, large)).front() == 0.7376294732093811F);
}

TEST_CASE("randn: the official run's initial noise") {
  std::vector<std::filesystem::path> roots = {DIPTYCH_SOURCE_DIR "/tests/goldens",
                                              DIPTYCH_SOURCE_DIR "/../shared/goldens"};
  if (const char* goldens = std::getenv("DIPTYCH_GOLDENS")) roots.emplace_back(goldens);
  int found = 0;
  for (const auto& root : roots) {
    const auto inputs = root / "bagel/cases/01_t2i_square/inputs.safetensors";
    if (!std::filesystem::exists(inputs)) continue;
    ++found;
    at::Generator generator = cpu_generator(42);
    const Tensor noise = SafetensorsFile::open(inputs).view("init_noise");
    CHECK(noise.sizes() == at::IntArrayRef{16, 64});
    CHECK(at::equal(randn({16, 64}, generator), noise));
  }
  CHECK(found >= 1);
}

}  // namespace
}  // namespace diptych
