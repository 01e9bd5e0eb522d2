#include "lib/tensor/pth.h"

#include "lib/tensor/checkpoint_hash.h"
#include "lib/tensor/safetensors.h"
#include "lib/tensor/stored_tensors.h"
#include "lib/tensor/weights.h"
#include "tests/tensor/pth_support.h"

namespace diptych {
namespace {

using Named = std::vector<std::pair<std::string, Tensor>>;

constexpr const char* kGolden = DIPTYCH_SOURCE_DIR "/tests/goldens/lance/checkpoint/Wan2.2_VAE.pth";

std::string floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

TEST_CASE("PthFile: a file of torch.save") {
  const auto file = PthFile::open(kGolden);
  CHECK(file.entries().size() == 196);
  const TensorEntry& entry = file.entries().at("encoder.conv1.weight");
  CHECK(entry.shape == std::vector<std::int64_t>{3, 12, 3, 3, 3});
  CHECK((entry.dtype == at::kFloat));
  CHECK(entry.begin % 64 == 0);
  CHECK(file.metadata().empty());
  const Tensor bias = file.view("encoder.conv1.bias");
  CHECK(bias.const_data_ptr() == file.bytes("encoder.conv1.bias").data());
}

TEST_CASE("PthFile: every form that torch.save gives a state dict") {
  const test::Folder folder;
  const auto path = folder / "m.pth";
  const std::string ordered = "ccollections\nOrderedDict\n)R";
  const std::string attributes = "}" + pth::text("_metadata") + ordered + "(" + pth::text("") +
                                 "}" + pth::text("version") + "K\1su" + "sb";
  const std::string parameter =
      "ctorch._utils\n_rebuild_parameter\n(" +
      pth::tensor({.storage = "1", .elements = 2, .shape = {2}, .strides = {1}}) + "\x88" +
      ordered + "tR";
  const std::string last =
      pth::tensor({.offset = 3, .shape = {3}, .strides = {1}});  // of the storage of "whole"
  const std::string pickle = "\x80\2" + ordered + std::string("q\0(", 3) + pth::text("whole") +
                             pth::tensor() + "r" + pth::number(1, 4) + pth::text("same") + "h\1" +
                             pth::text("p") + parameter + pth::text("none") +
                             pth::tensor({.storage = "2",
                                          .type = "HalfStorage",
                                          .elements = 0,
                                          .shape = {0, 3},
                                          .strides = {3, 1}}) +
                             pth::text("one") +
                             pth::tensor({.offset = 5, .shape = {}, .strides = {}}) + "u" +
                             pth::text("last") + last + "s" + attributes + ".";
  for (const bool zip64 : {false, true}) {
    CAPTURE(zip64);
    write_file(path, pth::zip({{"m/data.pkl", pickle},
                               {"m/byteorder", "little"},
                               {"m/data/0", floats({1, 2, 3, 4, 5, 6}), 0, 0, 0, zip64},
                               {"m/data/1", floats({7, 8}), 0, 0, 0, zip64},
                               {"m/data/2", ""},
                               {"m/version", "3\n"}},
                              zip64));
    const auto file = PthFile::open(path);
    REQUIRE(file.entries().size() == 6);
    CHECK(equal_bits(file.view("whole"), at::arange(1, 7, at::kFloat).view({2, 3})));
    CHECK(equal_bits(file.view("same"), file.view("whole")));
    CHECK(equal_bits(file.view("last"), at::arange(4, 7, at::kFloat)));
    CHECK(equal_bits(file.view("p"), at::arange(7, 9, at::kFloat)));
    CHECK(equal_bits(file.view("none"), at::empty({0, 3}, at::kHalf)));
    CHECK(equal_bits(file.view("one"), at::full({}, 6.F)));
  }
}

TEST_CASE("PthFile: dtypes, and strides that say nothing") {
  const test::Folder folder;
  const std::vector<std::pair<std::string, at::ScalarType>> types = {
      {"DoubleStorage", at::kDouble},     {"FloatStorage", at::kFloat}, {"HalfStorage", at::kHalf},
      {"BFloat16Storage", at::kBFloat16}, {"LongStorage", at::kLong},   {"IntStorage", at::kInt},
      {"ShortStorage", at::kShort},       {"CharStorage", at::kChar},   {"ByteStorage", at::kByte},
      {"BoolStorage", at::kBool}};
  for (const auto& [name, dtype] : types) {
    CAPTURE(name);
    const Tensor expected = at::tensor({0, 1, 1, 0}).to(dtype).view({4, 1});
    const std::string bytes(static_cast<const char*>(expected.const_data_ptr()), expected.nbytes());
    write_file(
        folder / "m.pth",
        pth::file(
            pth::dict(
                pth::text("t") +
                pth::tensor({.type = name, .elements = 4, .shape = {4, 1}, .strides = {1, 77}})),
            {{"a/data/0", bytes}}));
    CHECK(equal_bits(PthFile::open(folder / "m.pth").view("t"), expected));
  }
}

TEST_CASE("Weights: a .pth file is used as a .safetensors file with the same tensors is") {
  const test::Folder folder;
  const Weights pth = Weights::open(kGolden, at::kCPU, at::kFloat);
  const auto file = PthFile::open(kGolden);
  Named tensors;
  for (const auto& [name, entry] : file.entries()) tensors.emplace_back(name, file.view(name));
  write_safetensors(folder / "m.safetensors", tensors);
  const CheckpointFiles files = open_checkpoint(kGolden),
                        others = open_checkpoint(folder / "m.safetensors");
  CHECK(pth.hash() == checkpoint_hash(others));
  // Of Wan2.2_VAE.safetensors, which the reference data holds for convenience.
  CHECK(pth.hash() == "cbfe65cd78cf85c05f60d7841980221314ee511c85fcd9214056ccc21b1d7d2a");
  CHECK(pth.total_bytes() == stored_bytes(others));
  CHECK(stored_bytes(files, at::kFloat) == stored_bytes(others, at::kFloat));
  CHECK(view_bytes(files, at::kFloat) == stored_bytes(files));
  require_finite(files);
  CHECK(pth.unread().size() == 196);
  const Weights conv = pth.scope("encoder").scope("conv1");
  const Tensor half = conv.as(at::kBFloat16).get("weight", {3, 12, 3, 3, 3});
  CHECK(equal_bits(half, file.view("encoder.conv1.weight").to(at::kBFloat16)));
  CHECK(pth.unread().size() == 195);
  check_contains(input_error([&] {
                   conv.get("weight", {3, 12});
                 }),
                 "Wan2.2_VAE.pth: tensor \"encoder.conv1.weight\" has shape [3, 12, 3, 3, 3]");
}

}  // namespace
}  // namespace diptych
