#include "lib/sampling/speculative.h"

#include <algorithm>
#include <utility>

namespace diptych {

Tensor acceptance_lengths(const Tensor& drafts, const Tensor& choices) {
  TORCH_CHECK(drafts.dim() == 2 && choices.dim() == 2 && drafts.size(0) == choices.size(0) &&
                  drafts.size(1) + 1 == choices.size(1),
              "[acceptance_lengths] drafts ", drafts.sizes(), " beside choices ", choices.sizes());
  const Tensor equal = drafts == choices.narrow(1, 0, drafts.size(1));
  return equal.to(at::kLong).cumprod(1).sum(1).add_(1);
}

DecidedText::DecidedText(TextLimits limits) : limits_(std::move(limits)) {
  TORCH_CHECK(limits_.max_new_tokens >= 1, "[speculative] max_new_tokens is ",
              limits_.max_new_tokens);
}

std::span<const std::int64_t> DecidedText::add(std::span<const std::int64_t> ids) {
  decided_ += static_cast<std::int64_t>(ids.size());
  const std::size_t before = ids_.size();
  for (const std::int64_t id : ids) {
    if (stopped_ || std::cmp_greater_equal(ids_.size(), limits_.max_new_tokens)) break;
    ids_.push_back(id);
    stopped_ = std::ranges::find(limits_.stop_ids, id) != limits_.stop_ids.end();
  }
  return std::span(ids_).subspan(before);
}

}  // namespace diptych
