#include "lib/pipelines/qwen3_dflash/target.h"

#include <utility>

namespace diptych {

TextTarget text_target(const Qwen3& model) {
  TextTarget target;
  target.config = model.config;
  target.embed = [&model](const Tensor& ids) { return model.embed(ids); };
  target.logits = [&model](const Tensor& hidden, const Kernels& kernels) {
    return model.logits(hidden, kernels);
  };
  target.forward = [&model](const QwenRows& rows, Tensor x, const KvCache& cache,
                            const AttentionBackend& attention, const Kernels& kernels,
                            const QwenObserver& observer) {
    return model.decoder.forward(rows, std::move(x), cache, attention, kernels, observer);
  };
  return target;
}

}  // namespace diptych
