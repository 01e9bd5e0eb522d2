#include "lib/tensor/weights.h"

#include "lib/tensor/safetensors.h"
#include "tests/tensor/support.h"

namespace diptych {
namespace {

using Named = std::vector<std::pair<std::string, Tensor>>;

Named layers() {
  return {{"layers.0.mlp.weight", at::arange(6, at::kFloat).view({2, 3})},
          {"layers.0.mlp.bias", at::tensor({0.1F, 1e-3F})},
          {"layers.1.mlp.weight", at::full({2, 3}, 1.00390625).to(at::kBFloat16)},
          {"layers.10.mlp.weight", at::ones({2, 3})},
          {"ids", at::arange(4, at::kLong)}};
}

TEST_CASE("Weights: get below a prefix, converted or as a view of the file") {
  const test::Folder folder;
  const auto path = folder / "m.safetensors";
  write_safetensors(path, layers());
  const Weights weights = Weights::open(path, at::kCPU, at::kFloat);
  CHECK_FALSE(weights.is_dummy());
  const Weights mlp = weights.scope("layers.0").scope("mlp");
  CHECK(mlp.contains("weight"));
  CHECK_FALSE(mlp.contains("scale"));
  CHECK(mlp.shape("weight") == std::vector<std::int64_t>{2, 3});
  const Tensor view = mlp.get("weight", {2, 3});
  CHECK(equal_bits(view, layers()[0].second));
  CHECK(view.const_data_ptr() == mlp.get("weight", {2, 3}).const_data_ptr());  // no copy

  const Tensor rounded = mlp.as(at::kBFloat16).get("bias", {2});
  CHECK(equal_bits(rounded, at::tensor({0.1F, 1e-3F}).to(at::kBFloat16)));
  CHECK(equal_bits(weights.get("layers.1.mlp.weight", {2, 3}),
                   at::full({2, 3}, 1.F)));  // rounded by BF16
  CHECK(equal_bits(weights.as(at::kLong).get("ids", {4}), at::arange(4, at::kLong)));
}

TEST_CASE("Weights: read writes what get returns, into rows of a larger tensor too") {
  const test::Folder folder;
  write_safetensors(folder / "m.safetensors", layers());
  const Weights file = Weights::open(folder / "m.safetensors", at::kCPU, at::kBFloat16);
  for (const Weights& weights : {file, Weights::dummy(at::kCPU, at::kBFloat16, 3)}) {
    const Tensor packed = at::zeros({4, 3}, weights.options());
    weights.read("layers.0.mlp.weight", {2, 3}, packed.narrow(0, 1, 2));
    CHECK(equal_bits(packed.narrow(0, 1, 2), weights.get("layers.0.mlp.weight", {2, 3})));
    CHECK(packed.abs().sum().item<double>() > 0.1);
    CHECK(packed[0].abs().sum().item<double>() == 0);
    CHECK(packed[3].abs().sum().item<double>() == 0);
    CHECK_THROWS_AS(weights.read("layers.0.mlp.weight", {2, 3}, packed), c10::Error);
    CHECK_THROWS_AS(weights.read("layers.0.mlp.weight", {4, 3}, packed.to(at::kFloat)), c10::Error);
  }
  CHECK(file.unread().size() == 4);
  check_contains(input_error([&] {
                   file.read("layers.0.mlp.weight", {4, 3}, at::zeros({4, 3}, file.options()));
                 }),
                 "has shape [2, 3], expected [4, 3]");
}

TEST_CASE("Weights: errors name the file, the tensor, what is there and what was wanted") {
  const test::Folder folder;
  const auto path = folder / "m.safetensors";
  write_safetensors(path, layers());
  const Weights weights = Weights::open(path, at::kCPU, at::kBFloat16);
  const auto error = [&](std::string_view name, at::IntArrayRef shape) {
    const std::string message =
        input_error([&] { weights.scope("layers.0.mlp").get(name, shape); });
    CHECK(message == input_error([&] { weights.scope("layers.0.mlp").check(name, shape); }));
    check_contains(message, path.string() + ": tensor \"layers.0.mlp.");
    return message;
  };
  check_contains(error("weight", {3, 2}),
                 "\"layers.0.mlp.weight\" has shape [2, 3], expected [3, 2]");
  check_contains(error("weight", {6}), "has shape [2, 3], expected [6]");
  check_contains(error("weigth", {2, 3}),
                 "is missing; the nearest name is \"layers.0.mlp.weight\"");
  const std::string far = error("an_entirely_different_name_that_is_also_long", {1});
  CHECK(far.ends_with("is missing"));
  check_contains(input_error([&] { weights.shape("id"); }),
                 "is missing; the nearest name is \"ids\"");
  check_contains(input_error([&] { weights.get("ids", {4}); }),
                 "\"ids\" has dtype I64, expected a floating-point one");
  check_contains(input_error([&] { weights.as(at::kInt).get("ids", {4}); }),
                 "has dtype I64, expected I32");
  check_contains(input_error([&] { weights.as(at::kLong).get("layers.0.mlp.bias", {2}); }),
                 "has dtype F32, expected I64");
}

TEST_CASE("Weights: what was not read is known by name") {
  const test::Folder folder;
  const auto path = folder / "m.safetensors";
  write_safetensors(path, layers());
  const Weights weights = Weights::open(path, at::kCPU, at::kFloat);
  CHECK(weights.unread().size() == 5);
  weights.scope("layers.0.mlp").get("weight", {2, 3});
  weights.check("layers.1.mlp.weight", {2, 3});
  CHECK(weights.contains("ids"));  // asking is not reading
  CHECK(weights.unread() ==
        std::vector<std::string>{"ids", "layers.0.mlp.bias", "layers.10.mlp.weight"});
  CHECK(weights.scope("layers.1").unread().empty());  // layers.10 is not below layers.1
  CHECK(weights.scope("layers.0").unread() == std::vector<std::string>{"layers.0.mlp.bias"});
  check_contains(
      input_error([&] { weights.scope("layers.0").require_all_read(); }),
      path.string() + ": 1 unexpected tensor that the model does not have: \"layers.0.mlp.bias\"");
  weights.check("layers.10.mlp.weight", {2, 3});
  weights.check("layers.0.mlp.bias", {2});
  weights.as(at::kLong).check("ids", {4});
  CHECK_NOTHROW(weights.require_all_read());

  Named many;
  for (int i = 0; i < 7; ++i) many.emplace_back(fmt::format("t{}", i), at::ones({1}));
  write_safetensors(folder / "many.safetensors", many);
  const Weights unread = Weights::open(folder / "many.safetensors", at::kCPU, at::kFloat);
  const std::string message = input_error([&] { unread.require_all_read(); });
  check_contains(message,
                 "7 unexpected tensors that the model does not have: \"t0\", \"t1\", \"t2\", "
                 "\"t3\", \"t4\" and 2 more");
}

TEST_CASE("Weights: shards read as one checkpoint and hash as the single file does") {
  const test::Folder folder;
  const auto all = layers();
  write_safetensors(folder / "one.safetensors", all);
  write_safetensors(folder / "p1.safetensors", std::span(all).first(2));
  write_safetensors(folder / "p2.safetensors", std::span(all).subspan(2));
  std::string map;
  for (std::size_t i = 0; i < all.size(); ++i) {
    map +=
        fmt::format("{}\"{}\":\"p{}.safetensors\"", i == 0 ? "" : ",", all[i].first, i < 2 ? 1 : 2);
  }
  write_file(folder / "model.safetensors.index.json",
             fmt::format(R"({{"weight_map":{{{}}}}})", map));
  const Weights one = Weights::open(folder / "one.safetensors", at::kCPU, at::kFloat);
  const Weights sharded = Weights::open(folder.path(), at::kCPU, at::kFloat);
  CHECK(equal_bits(sharded.get("layers.10.mlp.weight", {2, 3}), at::ones({2, 3})));
  CHECK(sharded.unread().size() == 4);
  CHECK(one.hash() == "d827c604c3ba37723cd3a84b53744cc26ae7d21f7c6587b9d5f779d98c7fd7b9");
  CHECK(sharded.hash() == one.hash());
  CHECK(sharded.scope("layers").hash() == one.hash());

  auto changed = all;
  changed[1].second = at::tensor({0.1F, 1.0001e-3F});
  write_safetensors(folder / "changed.safetensors", changed);
  CHECK(Weights::open(folder / "changed.safetensors", at::kCPU, at::kFloat).hash() != one.hash());
  changed = all;
  changed[0].second = all[0].second.view({3, 2});  // the same bytes in another shape
  write_safetensors(folder / "changed.safetensors", changed);
  CHECK(Weights::open(folder / "changed.safetensors", at::kCPU, at::kFloat).hash() != one.hash());
}

TEST_CASE("Weights::dummy: the same tensor for the same name, whatever else is asked") {
  const Weights first = Weights::dummy(at::kCPU, at::kFloat, 7);
  const Weights second = Weights::dummy(at::kCPU, at::kFloat, 7);
  const Tensor a = first.get("a.weight", {64, 96});
  const Tensor b = first.get("b.weight", {64, 96});
  CHECK(equal_bits(second.scope("b").get("weight", {64, 96}), b));
  CHECK(equal_bits(second.get("a.weight", {64, 96}), a));
  CHECK_FALSE(at::equal(a, b));
  CHECK_FALSE(at::equal(Weights::dummy(at::kCPU, at::kFloat, 8).get("a.weight", {64, 96}), a));
  CHECK(first.is_dummy());
  CHECK(first.contains("anything"));
  CHECK(first.unread().empty());
  CHECK_NOTHROW(first.require_all_read());
  CHECK_NOTHROW(first.check("anything", {1}));
  CHECK(first.hash() == "dummy-7");
  check_contains(input_error([&] { first.scope("vae").shape("conv"); }),
                 "the shape of \"vae.conv\" is not known");
}

TEST_CASE("Weights::dummy: sizes of the numbers") {
  const Weights weights = Weights::dummy(at::kCPU, at::kFloat);
  const auto check = [](const Tensor& tensor, double mean, double deviation) {
    CHECK(tensor.mean().item<double>() == doctest::Approx(mean).epsilon(0.02));
    CHECK(tensor.std().item<double>() == doctest::Approx(deviation).epsilon(0.02));
  };
  check(weights.get("q_proj.weight", {512, 256}) + 1, 1, 1. / 16);
  check(weights.get("conv.weight", {400, 16, 3, 3}) + 1, 1, 1. / 12);  // fan in 144
  check(weights.get("norm.weight", {65536}), 1, 0.1);
  check(weights.get("q_proj.bias", {65536}) + 1, 1, 0.1);
  CHECK(weights.get("empty", {0, 4}).sizes() == at::IntArrayRef{0, 4});
  CHECK(weights.get("scalar", {}).dim() == 0);
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat8_e4m3fn}) {
    const Tensor tensor = weights.as(dtype).get("q_proj.weight", {512, 256});
    CHECK(has_dtype(tensor, dtype));
    check(tensor.to(at::kFloat) + 1, 1, 1. / 16);
  }
}

}  // namespace
}  // namespace diptych
