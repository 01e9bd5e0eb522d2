// --enhance-prompt: a language model of another family writes the prompt anew before the request
// comes to its own session.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/log.h"
#include "lib/config/fields.h"
#include "lib/pipelines/family.h"
#include "lib/session/session.h"

namespace diptych {

// One language model for requests that name it. Its weights are read with the first prompt and are
// gone with it.
class PromptEnhancer {
 public:
  // The model that this request names. Reads headers, no weights. Throws InputError about a flag of
  // the enhancer, or one that it shares with the request.
  PromptEnhancer(const Options& first, Log& log);
  ~PromptEnhancer();
  PromptEnhancer(const PromptEnhancer&) = delete;
  PromptEnhancer& operator=(const PromptEnhancer&) = delete;

  // Whether the request names this model. Device and the like are those of all requests.
  bool serves(const Options& options) const;
  // Whether the prompt can be rewritten, as far as this is known without weights. Throws
  // InputError.
  void check(const Options& options);
  // The request gets the prompt that the model makes of its own, which is logged behind `label`.
  // Ranks that share the request get that of the first. Throws InputError for an answer without
  // text, Interrupted.
  void rewrite(Options& options, std::string_view label, Progress& progress);

 private:
  std::unique_ptr<Job> make_job(const Options& options, const std::string& instructions);
  std::string write(const Options& options, const std::string& instructions, std::string_view label,
                    Progress& progress);

  Log& log_;
  // Of the session, whose notes speak of flags of its own and repeat those of the painter's.
  Log session_log_;
  EnhanceConfig model_;
  DeviceChoice device_;
  const Family& family_;
  std::unique_ptr<Session> session_;
};

// Those of the requests, each model once, in the order in which they are named first.
using PromptEnhancers = std::vector<std::unique_ptr<PromptEnhancer>>;
// Opens the request's enhancer if none of these serves it. Throws as PromptEnhancer.
PromptEnhancer& enhancer_of(const Options& options, PromptEnhancers& opened, Log& log);

// Rewrites the prompts of all these requests that ask for it, with one model after the other in
// memory.
void enhance_prompts(std::span<Options* const> requests, Progress& progress, Log& log);

}  // namespace diptych
