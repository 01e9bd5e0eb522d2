#include "lib/ops/launch_label.h"

namespace diptych {
namespace {

constexpr std::string_view kPrefix = "launch: ";

}  // namespace

LaunchLabel::LaunchLabel(LaunchName name) {
  if (name.what == nullptr) return;
  std::optional<at::StepCallbacks> listeners =
      at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  if (!listeners) return;
  scope_.emplace(std::move(*listeners));
  std::string text(kPrefix);
  text += name.what;
  if (name.rows != nullptr) text.append(" ").append(name.rows);
  scope_->before(std::string_view(text));
}

std::optional<std::string_view> LaunchLabel::read(std::string_view scope) {
  if (!scope.starts_with(kPrefix)) return std::nullopt;
  return scope.substr(kPrefix.size());
}

}  // namespace diptych
