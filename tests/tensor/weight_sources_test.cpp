// Tensors under other names, fp8 codes with their scales, and changes that are added.
#include "lib/tensor/weight_sources.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "lib/tensor/safetensors.h"
#include "lib/tensor/weights.h"
#include "tests/tensor/support.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using Named = std::vector<std::pair<std::string, Tensor>>;

const fs::path kGoldens = fs::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/wan/weights";

Tensor codes(std::vector<float> values, std::vector<std::int64_t> shape) {
  return at::tensor(values).view(shape).to(at::kFloat8_e4m3fn);
}

Tensor scalar(double value) {
  return at::full({}, value, at::kFloat);
}

Tensor text(const std::string& value) {
  Tensor bytes = at::empty({static_cast<std::int64_t>(value.size())}, at::kByte);
  std::copy(value.begin(), value.end(), bytes.data_ptr<std::uint8_t>());
  return bytes;
}

Named scaled(const std::string& scale_name, const Tensor& scale) {
  return {{"a.weight", codes({1, -2, 3.5, 0.25, 448, -0.125}, {2, 3})},
          {scale_name, scale},
          {"a.bias", at::ones({2})}};
}

Weights opened(const test::Folder& folder, const Named& tensors, WeightReading reading = {},
               const std::map<std::string, std::string>& metadata = {}) {
  write_safetensors(folder / "m.safetensors", tensors, metadata);
  return Weights::open(folder / "m.safetensors", at::kCPU, at::kFloat, std::move(reading));
}

std::string refusal(const Named& tensors, const std::map<std::string, std::string>& metadata = {}) {
  const test::Folder folder;
  return input_error([&] { opened(folder, tensors, {}, metadata).get("a.weight", {2, 3}); });
}

TEST_CASE("Weights: all codes of both fp8 formats have the recorded values") {
  const fs::path path = kGoldens / "single_file_fp8_scaled/fp8_code_table.safetensors";
  const SafetensorsFile file = SafetensorsFile::open(path);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Weights weights = Weights::open(path, at::kCPU, dtype);
    for (const std::string format : {"e4m3fn", "e5m2"}) {
      const Tensor values = weights.get("codes_" + format, {256});
      const Tensor expected = file.view("values_" + format).to(dtype);
      CHECK(at::allclose(values, expected, 0, 0, /*equal_nan=*/true));
      CHECK(at::equal(values.signbit().logical_and(values.isnan().logical_not()),
                      expected.signbit().logical_and(expected.isnan().logical_not())));
      CHECK(expected.isnan().sum().item<std::int64_t>() == (format == "e5m2" ? 6 : 2));
    }
  }
}

TEST_CASE("Weights: fp8 codes are multiplied by the scale beside them") {
  const Tensor plain = at::tensor({1., -2., 3.5, 0.25, 448., -0.125}).view({2, 3}).to(at::kFloat);
  const test::Folder folder;
  for (const char* name : {"a.scale_weight", "a.weight_scale"}) {
    const Weights weights = opened(folder, scaled(name, scalar(0.1)));
    CHECK(equal_bits(weights.get("a.weight", {2, 3}), plain * at::full({}, 0.1F)));
    CHECK(weights.is_computed("a.weight"));
    CHECK_FALSE(weights.is_computed("a.bias"));
    CHECK_FALSE(weights.contains(name));
    weights.get("a.bias", {2});
    CHECK(weights.unread().empty());
    Tensor into = at::zeros({2, 3}, at::kBFloat16);
    weights.as(at::kBFloat16).read("a.weight", {2, 3}, into);
    CHECK(equal_bits(into, (plain * at::full({}, 0.1F)).to(at::kBFloat16)));
  }
  const Tensor rows = at::tensor({0.5F, 3.F});
  for (const Tensor& scale : {rows, rows.view({2, 1})}) {
    const Weights weights = opened(folder, scaled("a.scale_weight", scale));
    CHECK(equal_bits(weights.get("a.weight", {2, 3}), plain * rows.view({2, 1})));
  }
  CHECK(equal_bits(opened(folder, scaled("a.weight_scale", at::full({1}, 2).to(at::kBFloat16)))
                       .get("a.weight", {2, 3}),
                   plain * 2));
}

TEST_CASE("Weights: what belongs to fp8 weights is no tensor of the model") {
  const test::Folder folder;
  Named tensors = scaled("p.a.scale_weight", scalar(2));
  tensors[0].first = "p.a.weight";
  tensors[2].first = "p.a.bias";
  tensors.push_back({"p.scaled_fp8", codes({}, {0})});
  tensors.push_back({"p.a.scale_input", scalar(7)});
  tensors.push_back({"p.a.comfy_quant", text(R"({"format": "float8_e4m3fn"})")});
  tensors.push_back({"vae.conv.weight", at::ones({3})});
  const Weights weights =
      opened(folder, tensors, {.prefix = "p.", .names = {{"a.bias", "b"}}},
             {{"_quantization_metadata", R"({"layers": {"p.a": {"format": "float8_e4m3fn"}}})"}});
  CHECK(weights.unread() == std::vector<std::string>{"a.weight", "b"});
  CHECK(equal_bits(weights.get("b", {2}), at::ones({2})));
  CHECK(input_error([&] { weights.get("b", {3}); }).find("\"p.a.bias\" has shape [2]") !=
        std::string::npos);
  CHECK(input_error([&] { weights.get("a.bis", {3}); }).find("\"p.a.bis\" is missing") !=
        std::string::npos);
  CHECK(input_error([&] { weights.require_all_read(); }).find("\"p.a.weight\"") !=
        std::string::npos);
}

TEST_CASE("Weights: scales and formats that are not supported are refused by name") {
  const auto check = [](const std::string& message, const char* part) {
    CAPTURE(message);
    CHECK(message.find(part) != std::string::npos);
    CHECK(message.find('\n') == std::string::npos);
  };
  check(refusal(scaled("a.scale_weight", at::ones({2, 3}))), "scales of blocks");
  check(refusal(scaled("a.scale_weight", at::ones({3}))), "has shape [3]");
  check(refusal(scaled("a.weight_scale", at::ones({2}, at::kByte))), "has dtype U8");
  check(refusal(scaled("a.weight_scale", scalar(INFINITY))), "NaN or infinity");
  Named twice = scaled("a.weight_scale", scalar(1));
  twice.push_back({"a.scale_weight", scalar(1)});
  check(refusal(twice), "expected one scale");
  Named whole = scaled("a.weight_scale", scalar(0.5));
  whole[0].second = at::ones({2, 3});
  check(refusal(whole), "expected fp8");
  whole[1].second = scalar(1);
  const test::Folder folder;
  CHECK(equal_bits(opened(folder, whole).get("a.weight", {2, 3}), at::ones({2, 3})));
  whole[0].second = at::ones({2, 3}, at::kChar);
  check(refusal(whole), "has dtype I8");
  for (const char* format : {"nvfp4", "mxfp8", "int8_tensorwise"}) {
    Named named = scaled("a.weight_scale", scalar(1));
    const std::string layer = fmt::format(R"({{"format": "{}"}})", format);
    check(refusal(named, {{"_quantization_metadata", R"({"layers": {"a": )" + layer + "}}"}}),
          format);
    named.push_back({"a.comfy_quant", text(layer)});
    check(refusal(named), format);
  }
  Named rotated = scaled("a.weight_scale", scalar(1));
  rotated.push_back({"a.comfy_quant", text(R"({"format": "float8_e4m3fn", "convrot": true})")});
  check(refusal(rotated), "convrot");
  rotated.back().second = text("{nonsense");
  check(refusal(rotated), "which it does not name");
  check(refusal(scaled("a.weight_scale", scalar(1)), {{"_quantization_metadata", "[1]"}}),
        "expected an object");
}

TEST_CASE("Weights: changes are added in float32 and rounded once, also to dummy weights") {
  const test::Folder folder;
  const Tensor up = at::tensor({0.1F, 0.2F}).view({2, 1}),
               down = at::tensor({1.F, 2.F, 3.F}).view({1, 3});
  const Tensor difference = at::full({2}, 1.F / 3);
  WeightReading reading;
  reading.changes["a.weight"] = {{up, down, {}, 0.5}, {up, down, {}, -2}};
  reading.changes["a.bias"] = {{{}, {}, difference, 3}};
  const Named tensors = scaled("a.scale_weight", scalar(0.1));
  const Weights weights = opened(folder, tensors, reading);
  const Tensor expected =
      tensors[0].second.to(at::kFloat) * at::full({}, 0.1F) + up.matmul(down) * -1.5;
  CHECK(at::allclose(weights.get("a.weight", {2, 3}), expected, 1e-6, 1e-6));
  CHECK(at::allclose(weights.get("a.bias", {2}), at::full({2}, 2.F), 1e-6));
  CHECK(equal_bits(weights.as(at::kBFloat16).get("a.weight", {2, 3}),
                   weights.get("a.weight", {2, 3}).to(at::kBFloat16)));
  CHECK(equal_bits(weights.on(at::kCPU).get("a.weight", {2, 3}), weights.get("a.weight", {2, 3})));

  const Weights dummy = Weights::dummy(at::kCPU, at::kFloat, 1, reading.changes);
  const Tensor drawn = Weights::dummy(at::kCPU, at::kFloat, 1).get("a.weight", {2, 3});
  CHECK(at::allclose(dummy.get("a.weight", {2, 3}), drawn + up.matmul(down) * -1.5, 1e-6, 1e-6));

  reading.changes["b.weight"] = reading.changes["a.weight"];
  CHECK(input_error([&] { opened(folder, tensors, reading); }).find("\"b.weight\" is missing") !=
        std::string::npos);
}

TEST_CASE("Weights: two stored tensors cannot be the same one") {
  const test::Folder folder;
  const Named tensors = {{"x", at::ones({1})}, {"y", at::ones({1})}};
  CHECK(input_error([&] {
          opened(folder, tensors, {.prefix = "", .names = {{"x", "y"}}});
        }).find("by another name") != std::string::npos);
}

}  // namespace
}  // namespace diptych
