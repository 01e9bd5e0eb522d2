#include "lib/pipelines/drafting/settings.h"

namespace diptych {

std::vector<OwnIdle> idle_drafts(const RunConfig& run) {
  if (run.answers() || run.think) return {};
  const SettingText why = {"has no meaning where no text is written"};
  return {{"draft_model", why}, {"block_size", why}};
}

}  // namespace diptych
