#include "lib/pipelines/mot/settings.h"

#include "lib/pipelines/drafting/drafter.h"

namespace diptych {

TextRequest make_text_request(const RunConfig& config, const DraftSettings& drafts) {
  TextRequest request;
  request.max_tokens = config.think ? config.text.max_think_tokens : config.text.max_tokens;
  request.sampling.temperature = config.text.temperature;
  request.sampling.top_k = config.text.top_k;
  request.sampling.top_p = config.text.top_p;
  request.graph = !config.read_enforce_eager;
  request.block_size = drafts.block_size;
  if (!config.answers() && !config.think) return request;  // nothing is written
  require_drafter(drafts);
  request.sampling.check();
  return request;
}

}  // namespace diptych
