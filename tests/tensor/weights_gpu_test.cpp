#include "lib/tensor/safetensors.h"
#include "lib/tensor/trace.h"
#include "lib/tensor/weights.h"
#include "tests/tensor/support.h"

namespace diptych {
namespace {

TEST_CASE("Weights on CUDA: the bits of the file, converted as on the CPU") {
  const test::Folder folder;
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const Tensor wide = at::randn({257, 33}, generator);
  const std::vector<std::pair<std::string, Tensor>> tensors = {
      {"odd", at::ones({3}, at::kByte)}, {"wide", wide}, {"half", wide.to(at::kBFloat16)}};
  write_safetensors(folder / "m.safetensors", tensors);
  const Weights weights = Weights::open(folder / "m.safetensors", at::kCUDA, at::kBFloat16);
  const Tensor half = weights.get("half", {257, 33}), rounded = weights.get("wide", {257, 33});
  CHECK(half.is_cuda());
  CHECK(equal_bits(half.cpu(), tensors[2].second));
  CHECK(equal_bits(rounded.cpu(), tensors[2].second));
  CHECK(equal_bits(weights.as(at::kFloat).get("wide", {257, 33}).cpu(), wide));
  CHECK(weights.hash().size() == 64);
  // Straight to where it is wanted.
  for (const at::Device device : {at::Device(at::kCUDA, 0), at::Device(at::kCPU)}) {
    const Tensor packed =
        at::zeros({300, 33}, at::TensorOptions().device(device).dtype(at::kBFloat16));
    weights.read("wide", {257, 33}, packed.narrow(0, 20, 257));
    CHECK(equal_bits(packed.narrow(0, 20, 257).cpu().contiguous(), tensors[2].second));
  }
}

TEST_CASE("Weights::ReadAhead on CUDA: the same bits, wherever they are wanted") {
  const test::Folder folder;
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (int i = 0; i < 24; ++i) {  // more than one piece each, more than all buffers together
    const Tensor wide = at::randn({1021, 2053 + i}, generator);
    tensors.emplace_back(fmt::format("{}", i), i % 3 == 0 ? wide : wide.to(at::kBFloat16));
  }
  write_safetensors(folder / "m.safetensors", tensors);
  const Weights weights = Weights::open(folder / "m.safetensors", at::kCUDA, at::kBFloat16);
  std::uint64_t seen = 0;
  Weights(weights).on_read([&](std::uint64_t bytes) { seen += bytes; });
  std::vector<Tensor> got, used(tensors.size());
  const auto pinned = at::TensorOptions(at::kBFloat16).pinned_memory(true);
  const Tensor host = at::zeros({1021, 2060}, pinned);
  {
    Weights::ReadAhead reading(weights);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto name = fmt::format("{}", i);
      const auto shape = tensors[i].second.sizes();
      got.push_back(weights.get(name, shape));
      weights.get_then(name, shape, [&, i](const Tensor& plain) { used[i] = plain * 2; });
    }
    weights.read("7", {1021, 2060}, host);
    reading.finish();
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    CAPTURE(i);
    const Tensor expected = tensors[i].second.to(at::kBFloat16);
    CHECK(equal_bits(got[i].cpu(), expected));
    CHECK(equal_bits(used[i].cpu(), expected * 2));
  }
  CHECK(equal_bits(host, tensors[7].second));
  CHECK(seen == 2 * weights.total_bytes() + host.nbytes());
}

TEST_CASE("Weights::dummy on CUDA: reproducible, in any order, of the right size") {
  const Weights first = Weights::dummy(at::kCUDA, at::kBFloat16);
  const Tensor a = first.get("a.weight", {1024, 512}), b = first.get("b.weight", {1024, 512});
  const Weights second = Weights::dummy(at::Device(at::kCUDA, 0), at::kBFloat16);
  CHECK(equal_bits(second.get("b.weight", {1024, 512}).cpu(), b.cpu()));
  CHECK(equal_bits(second.get("a.weight", {1024, 512}).cpu(), a.cpu()));
  CHECK_FALSE(at::equal(a, b));
  CHECK(a.is_cuda());
  CHECK(has_dtype(a, at::kBFloat16));
  CHECK(a.to(at::kFloat).std().item<double>() ==
        doctest::Approx(1 / std::sqrt(512.)).epsilon(0.02));
}

TEST_CASE("traces and files take CUDA tensors") {
  const test::Folder folder;
  const Tensor value = at::arange(12, at::TensorOptions().device(at::kCUDA).dtype(at::kBFloat16));
  TraceSink sink;
  sink.record("value", value.view({3, 4}).t());
  sink.write(folder / "t.safetensors");
  const auto file = SafetensorsFile::open(folder / "t.safetensors");
  CHECK(equal_bits(file.view("value"), at::arange(12, at::kFloat).view({3, 4}).t().contiguous()));
}

}  // namespace
}  // namespace diptych
