#include <doctest/doctest.h>

#include "tests/models/umt5_inputs.h"

namespace diptych {
namespace {

using namespace umt5_inputs;

const at::Device kGpu(at::kCUDA, 0);

struct Prompt {
  std::vector<std::int64_t> ids;
  Tensor embeds;  // recorded, float32 [n, d_model]
};

Prompt prompt_of(const std::string& family, const std::string& name) {
  const Weights file = recorded(kGoldens / family / "text_encode.safetensors");
  return {ids_of(get(file, name + ".ids", at::kLong)), get(file, name + ".embeds")};
}

Tensor encode(const std::string& family, const Prompt& prompt, at::Device device,
              at::ScalarType dtype) {
  return load(family, dtype, device).forward(prompt.ids, KernelPolicy::automatic);
}

}  // namespace

TEST_CASE("the text encoder on the GPU gives the recorded rows") {
  for (const char* family : {"wan", "cosmos"}) {
    for (const char* name : {"prompt0", "prompt1"}) {  // prompt1 is empty: one row
      CAPTURE(family);
      CAPTURE(name);
      const Prompt prompt = prompt_of(family, name);
      CHECK(relative_norm(encode(family, prompt, kGpu, at::kFloat), prompt.embeds) < 1e-5);
      const double plain =
          relative_norm(encode(family, prompt, at::kCPU, at::kBFloat16), prompt.embeds);
      const Tensor narrow = encode(family, prompt, kGpu, at::kBFloat16);
      CHECK((narrow.scalar_type() == at::kBFloat16));
      CHECK(relative_norm(narrow, prompt.embeds) < 2 * plain);
    }
  }
}

}  // namespace diptych
