#include "lib/tensor/safetensors.h"

#include "lib/tensor/dtype.h"
#include "tests/tensor/support.h"

namespace diptych {
namespace {

using Named = std::vector<std::pair<std::string, Tensor>>;

TEST_CASE("SafetensorsFile: reads bytes written by hand") {
  const test::Folder folder;
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"I16","shape":[2],"data_offsets":[8,12]},)"
      R"("a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}   )";
  // 1.5f and -2.0f; then 258 and -1, little-endian.
  const std::string data("\x00\x00\xC0\x3F\x00\x00\x00\xC0\x02\x01\xFF\xFF", 12);
  write_file(folder / "m.safetensors", file_bytes(header, data));
  const auto file = SafetensorsFile::open(folder / "m.safetensors");
  CHECK(file.path() == folder / "m.safetensors");
  CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}});
  REQUIRE(file.entries().size() == 2);
  CHECK(has_dtype(file.view("b"), at::kShort));
  CHECK(file.entries().at("b").begin == 8);
  CHECK(file.entries().at("b").end == 12);
  CHECK(equal_bits(file.view("a"), at::tensor({1.5F, -2.F}).view({1, 2})));
  CHECK(equal_bits(file.view("b"), at::tensor({258, -1}, at::kShort)));
  CHECK(file.bytes("b").size() == 4);
  check_contains(input_error([&] { file.view("c"); }), "m.safetensors: has no tensor \"c\"");
}

TEST_CASE("safetensors: round trip of every dtype, scalars, empty tensors and strides") {
  const test::Folder folder;
  Named tensors;
  for (const char* name : {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I64", "I32", "I16",
                           "I8", "U64", "U32", "U16", "U8", "BOOL"}) {
    const auto dtype = dtype_from_name(name);
    REQUIRE(dtype);
    CHECK(dtype_name(*dtype) == name);
    tensors.emplace_back(name, at::arange(12, at::kFloat).view({3, 4}).to(*dtype));
  }
  tensors.emplace_back("scalar", at::full({}, 3.25F));
  tensors.emplace_back("empty", at::empty({0, 5}, at::kBFloat16));
  tensors.emplace_back("strided", at::arange(24, at::kInt).view({2, 3, 4}).permute({2, 0, 1}));
  tensors.emplace_back("expanded", at::full({1}, 7.F).expand({3}));
  tensors.emplace_back("quote \" and \xC3\xA9", at::ones({1}, at::kByte));
  const std::map<std::string, std::string> metadata = {{"prompt", "a \"cat\"\n\xE7\x8C\xAB"},
                                                       {"", ""}};
  write_safetensors(folder / "m.safetensors", tensors, metadata);

  const auto file = SafetensorsFile::open(folder / "m.safetensors");
  CHECK(file.metadata() == metadata);
  REQUIRE(file.entries().size() == tensors.size());
  std::uint64_t position = 0;
  for (const auto& [name, tensor] : tensors) {
    CAPTURE(name);
    const Tensor view = file.view(name);
    CHECK(has_dtype(view, tensor.scalar_type()));
    CHECK(view.sizes() == tensor.sizes());
    CHECK(view.is_contiguous());
    CHECK(view.view({-1}).view(at::kByte).equal(tensor.contiguous().view({-1}).view(at::kByte)));
    CHECK(file.entries().at(name).begin == position);  // in the order given
    position = file.entries().at(name).end;
  }
  const std::string bytes = read_file(folder / "m.safetensors");
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i)
    length |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  CHECK(length % 8 == 0);
  CHECK(bytes.size() == 8 + length + position);
}

TEST_CASE("SafetensorsFile: a view outlives the file object, and misaligned bytes are copied") {
  const test::Folder folder;
  // Three bytes before the floats put them at an odd address.
  const std::string header = R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                             R"("f":{"dtype":"F32","shape":[2],"data_offsets":[3,11]}})";
  write_file(folder / "m.safetensors",
             file_bytes(header, std::string("\x01\x02\x03\x00\x00\x80\x3F\x00\x00\x00\x40", 11)));
  Tensor aligned, misaligned;
  {
    const auto file = SafetensorsFile::open(folder / "m.safetensors");
    aligned = file.view("a");
    misaligned = file.view("f");
    CHECK(aligned.const_data_ptr() == static_cast<const void*>(file.bytes("a").data()));
    CHECK(misaligned.const_data_ptr() != static_cast<const void*>(file.bytes("f").data()));
  }
  std::filesystem::remove(folder / "m.safetensors");
  CHECK(reinterpret_cast<std::uintptr_t>(misaligned.const_data_ptr()) % 4 == 0);
  CHECK(equal_bits(aligned, at::tensor({1, 2, 3}, at::kByte)));
  CHECK(equal_bits(misaligned, at::tensor({1.F, 2.F})));
}

TEST_CASE("write_safetensors: no tensors, a twice given name, a folder that is not there") {
  const test::Folder folder;
  write_safetensors(folder / "none.safetensors", {});
  CHECK(read_file(folder / "none.safetensors") == file_bytes("{}      ", ""));
  CHECK(SafetensorsFile::open(folder / "none.safetensors").entries().empty());
  const Named twice = {{"x", at::ones({1})}, {"x", at::ones({1})}};
  CHECK_THROWS_WITH_AS(write_safetensors(folder / "twice.safetensors", twice),
                       doctest::Contains("given twice"), c10::Error);
  CHECK_FALSE(std::filesystem::exists(folder / "twice.safetensors"));
  CHECK_THROWS_AS(write_safetensors(folder / "absent/x.safetensors", {}), InputError);
}

}  // namespace
}  // namespace diptych
