#include "lib/tuning/file.h"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/tuning/support.h"

namespace diptych {
namespace {

using nlohmann::json;
using testing::fp8_class;
using testing::kDevice;
using testing::refusal;

TuningFile example() {
  TuningFile file;
  file.device = kDevice;
  file.versions = {{"diptych", "0.1.0"}, {"torch", "2.11.0"}};
  TunedClass few = fp8_class(2, 3, Fp8Product::row_kernel);
  few.measured = {{2, {0.0125, 0.5, {}}}, {3, {0.0175, 0.5, 0.25}}};
  file.table.add(few);
  file.table.add(fp8_class(4, 4096, Fp8Product::cutlass));
  file.table.add(
      {TunedKernel::attention, {28, 4, 128}, 1, 300, static_cast<int>(FirstAttention::flash), {}});
  return file;
}

// What is said of the example after one value was replaced or (null) removed.
std::string refused(const std::string& pointer, const json& value) {
  json file = json::parse(tuning_text(example()));
  const json::json_pointer place(pointer);
  if (value.is_null()) {
    file.at(place.parent_pointer()).erase(place.back());
  } else {
    file[place] = value;
  }
  return refusal([&] { parse_tuning(file.dump(), "t.json", kDevice); });
}

}  // namespace

TEST_CASE("a tuning file reads back as it was written") {
  const TuningFile written = example();
  const TuningFile read = parse_tuning(tuning_text(written), "t.json", kDevice);
  CHECK(read.device == kDevice);
  CHECK(read.versions == written.versions);
  CHECK(read.table.hash() == written.table.hash());
  REQUIRE(read.table.classes().size() == 3);
  const TunedClass& few = read.table.classes()[0];
  REQUIRE(few.measured.size() == 2);
  CHECK(few.measured[0].rows == 2);
  CHECK(few.measured[0].milliseconds[0] == 0.0125);
  CHECK_FALSE(few.measured[0].milliseconds[2].has_value());
  CHECK(few.measured[1].milliseconds[2] == 0.25);
  CHECK(read.table.find(TunedKernel::attention, {28, 4, 128}, 300) ==
        static_cast<int>(FirstAttention::flash));
  const std::string text = tuning_text(written);
  CHECK(tuning_text(read) == text);
  CHECK(text.find("\n{\"rows\":2,\"milliseconds\":{") != std::string::npos);
}

TEST_CASE("a file's name is the device's") {
  CHECK(tuning_file_name(kDevice) == "NVIDIA_H200.json");
  CHECK(tuning_file_name({"NVIDIA A100-SXM4-80GB", 8, 0}) == "NVIDIA_A100-SXM4-80GB.json");
  CHECK(tuning_file_name({"../evil", 8, 0}) == "___evil.json");
}

TEST_CASE("a foreign or broken tuning file is refused with its key") {
  struct Case {
    const char* pointer;
    json value;
    const char* reason;
  };
  const Case cases[] = {
      {"/schema", "other", "schema: not \"diptych.tuning\"; expected a file of diptych tune"},
      {"/schema", nullptr, "schema: not \"diptych.tuning\"; expected a file of diptych tune"},
      {"/schema_version", 2,
       "schema_version: found 2, this version reads 3; diptych tune measures again"},
      {"/device", "NVIDIA H100",
       "device: found \"NVIDIA H100\", expected \"NVIDIA H200\", the device of this run"},
      {"/device", 7, "device: found 7, expected a text"},
      {"/compute_capability", "8.9",
       "compute_capability: found \"8.9\", expected \"9.0\", that of this run's device"},
      {"/dtype", "float16", "dtype: found \"float16\", expected \"bfloat16\""},
      {"/dtype", nullptr, "dtype: not there"},
      {"/versions", "2.11", "versions: found \"2.11\", expected an object"},
      {"/versions/torch", 2, "versions: torch: found 2, expected a text"},
      {"/choices", json::object(), "choices: found {}, expected a list"},
      {"/note", "x",
       "note: unknown key, expected schema, schema_version, device, compute_capability, dtype, "
       "versions, choices"},
      {"/choices/1", "x", "choices[1]: found \"x\", expected an object"},
      {"/choices/1/kernel", "gemm",
       "choices[1].kernel: found \"gemm\", expected linear_fp8, linear_int8, add_rms_norm, "
       "add_rms_norm_e4m3, gated_linear, silu_mul_e4m3, quantize_rows, attention"},
      {"/choices/1/choice", "copy",
       "choices[1].choice: found \"copy\", expected row_kernel, cublas, cutlass, "
       "row_kernel_4x4, row_kernel_4x8"},
      {"/choices/1/choice", "row_kernel",
       "choices[1].choice: found row_kernel for rows 4 to 4096, but row kernels take at most 16 "
       "rows"},
      {"/choices/1/choice", nullptr, "choices[1].choice: not there"},
      {"/choices/1/shape/width", 3,
       "choices[1].shape.width: unknown key, expected outputs, inputs"},
      {"/choices/1/shape/inputs", 0,
       "choices[1].shape.inputs: found 0, expected a whole number from 1 to 16777216"},
      {"/choices/1/shape/inputs", 3584.5,
       "choices[1].shape.inputs: found 3584.5, expected a whole number from 1 to 16777216"},
      {"/choices/1/rows", json::array({4}),
       "choices[1].rows: found [4], expected the first and the last"},
      {"/choices/1/rows/0", 3,
       "choices[1].rows: [3, 4096] overlaps [2, 3] of the same kernel and shape"},
      {"/choices/1/rows/1", -1,
       "choices[1].rows[1]: found -1, expected a whole number from 1 to 16777216"},
      {"/choices/0/measured/1/milliseconds/cutlass", -0.5,
       "choices[0].measured[1].milliseconds.cutlass: found -0.5, expected a number above 0"},
      {"/choices/0/measured/1/milliseconds/sdpa", 1,
       "choices[0].measured[1].milliseconds.sdpa: unknown key, expected row_kernel, cublas, "
       "cutlass, row_kernel_4x4, row_kernel_4x8"},
      {"/choices/0/why", "x",
       "choices[0].why: unknown key, expected kernel, shape, rows, choice, measured"},
  };
  for (const Case& each : cases) {
    CAPTURE(each.pointer);
    CHECK(refused(each.pointer, each.value) == std::string("t.json: ") + each.reason);
  }
  CHECK(refused("/choices/0/measured", nullptr) == "accepted");
  CHECK(refused("/choices/1/kernel", "line\nbreak").find('\n') == std::string::npos);
  const std::string long_text(5000, 'x');
  CHECK(refused("/schema_version", long_text).size() < 200);
  CHECK(refused("/" + long_text, 1).size() < 200);
  json deep = 1;
  for (int i = 0; i < 20; ++i) deep = json::array({deep});
  CHECK(refused("/device", deep) == "t.json: nested deeper than 16");
}

TEST_CASE("a text that is no JSON is refused with its place") {
  const auto said = [](const std::string& text) {
    return refusal([&] { parse_tuning(text, "t.json", kDevice); });
  };
  CHECK(said("") == "t.json: is empty, expected JSON");
  CHECK(said("{\n  \"schema\" 1}") == "t.json:2:12: is not valid JSON");
  CHECK(said(R"({"schema": 1, "schema": 1})") == "t.json: the key \"schema\" appears twice");
  CHECK(said("[]") == "t.json: schema: not \"diptych.tuning\"; expected a file of diptych tune");
  const std::string whole = tuning_text(example());
  CHECK(said(whole) == "accepted");
  for (std::size_t bytes = 1; bytes + 2 < whole.size(); bytes += 7) {
    const std::string message = said(whole.substr(0, bytes));
    CHECK(message.find("truncated?") != std::string::npos);
    CHECK(message.find('\n') == std::string::npos);
  }
}

}  // namespace diptych
