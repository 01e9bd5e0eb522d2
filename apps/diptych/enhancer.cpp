#include "apps/diptych/enhancer.h"

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/diptych/run_summary.h"
#include "lib/base/error.h"
#include "lib/base/folder.h"
#include "lib/base/interrupt.h"
#include "lib/config/family_fields.h"
#include "lib/config/resolve.h"
#include "lib/config/task.h"
#include "lib/config/words.h"
#include "lib/pipelines/registry.h"
#include "lib/request/enhanced_prompt.h"
#include "lib/runtime/ranks.h"
#include "lib/runtime/runtime.h"
#include "lib/runtime/spare_memory.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModel = "model";
constexpr const char* kMaxTokens = "max_tokens";
// How ranks hear of a prompt: in front of it, or of what is wrong.
constexpr char kWritten = '+', kRefused = '-';

// The family of the folder, of those that are told what to do.
const Family& family_of_enhancer(const fs::path& folder) {
  const Setting setting = Setting::of("enhancer");
  require_folder(folder, setting);
  std::vector<const FamilyConfig*> writers;
  for (const FamilyConfig* config : all_family_configs()) {
    if (!config->instructions.empty()) writers.push_back(config);
  }
  const Family* family = about(setting, [&] { return family_of_checkpoint(folder); });
  if (family == nullptr) throw InputError(setting, "{}", about_unknown_folder(folder, writers));
  if (!family->config().instructions.empty()) return *family;
  std::vector<std::string_view> names;
  for (const FamilyConfig* config : writers) names.push_back(config->name);
  throw InputError(setting, "{}: holds a checkpoint of {}, which rewrites no prompts; expected {}",
                   folder.string(), family->config().name, fmt::join(names, ", "));
}

// What the enhancer's family calls the settings of an enhancer.
std::map<std::string_view, std::string_view> names_of_settings(const FamilyConfig& family) {
  std::map<std::string_view, std::string_view> names = {
      {kModel, "enhancer"}, {kMaxTokens, "enhance_max_tokens"}, {"prompt", "prompt"}};
  names.emplace(family.instructions, "enhance_instructions");
  if (family.drafting) names.emplace(family.drafting->field, "enhancer_drafter");
  return names;
}

// Settings that it shares with the painter's request, whose errors keep their names.
constexpr std::string_view kShared[] = {"device",           "dtype",   "quantization", "kernels",
                                        "tuned_config_dir", "max_vram"};

// Runs `work` of the enhancer's session, whose errors speak of its own family's settings.
template <typename Work>
auto as_enhancer(const FamilyConfig& family, const Work& work) {
  try {
    return work();
  } catch (const InputError& error) {
    const Setting enhancer = Setting::of("enhancer");
    const SettingProblem* problem = error.problem();
    if (problem == nullptr) throw InputError(enhancer, "{}", error.what());
    const std::string_view setting = problem->setting.name;
    if (std::ranges::find(kShared, setting) != std::end(kShared)) throw;
    const auto names = names_of_settings(family);
    const auto name = names.find(setting);
    if (name == names.end()) throw InputError(enhancer, "{}", error.what());
    throw InputError(SettingProblem{Setting::of(name->second), problem->found, problem->text});
  }
}

// The request to the enhancer: what it is told, and the prompt. Greedy, so that the same request
// gives the same prompt.
RunConfig enhancer_request(const FamilyConfig& family, const Options& options,
                           const std::string& instructions) {
  const EnhanceConfig& enhance = options.enhance;
  if (!enhance.drafter.empty() && !family.drafting)
    throw InputError(Setting::of("enhancer_drafter"), "models of the family {} have no drafter",
                     family.name);
  Resolved resolved = without_sources(default_options(family));
  const auto assign_field = [&](std::string_view name, const std::string& text) {
    assign(family.fields[field_index(name, family.fields)], resolved.options, text, name);
  };
  assign_field(kModel, enhance.model.string());
  if (!enhance.drafter.empty()) assign_field(family.drafting->field, enhance.drafter.string());
  assign_field(family.instructions, instructions);
  assign_field(kMaxTokens, fmt::format("{}", enhance.max_tokens));
  RunConfig& run = resolved.options.run;
  run.text.temperature = 0;
  const RunConfig& painter = options.run;
  run.device = painter.device;
  run.dtype = painter.dtype;
  run.quantization = painter.quantization;
  run.kernels = painter.kernels;
  run.enforce_eager = painter.enforce_eager;
  run.tuned_config_dir = painter.tuned_config_dir;
  run.max_vram = painter.max_vram;
  run.inputs = {{painter.prompt(), {}}};
  settle_task(resolved);
  return run;
}

}  // namespace

PromptEnhancer::PromptEnhancer(const Options& first, Log& log)
    : log_(log),
      session_log_(log.level() == LogLevel::debug ? LogLevel::debug : LogLevel::quiet),
      model_(first.enhance),
      device_(first.run.device),
      family_(family_of_enhancer(first.enhance.model)) {
  const RunConfig request = enhancer_request(family_.config(), first, model_.picture_instructions);
  session_ = as_enhancer(family_.config(), [&] { return family_.open(request, session_log_); });
}

// Its memory is the next model's.
PromptEnhancer::~PromptEnhancer() {
  session_.reset();
  try {
    Log quiet(LogLevel::quiet);
    release_spare_memory(resolve_device(device_, quiet));
  } catch (...) {  // the next one says that there is none
  }
}

bool PromptEnhancer::serves(const Options& options) const {
  return options.enhance.model == model_.model && options.enhance.drafter == model_.drafter;
}

std::unique_ptr<Job> PromptEnhancer::make_job(const Options& options,
                                              const std::string& instructions) {
  return as_enhancer(family_.config(), [&] {
    return session_->make_job(enhancer_request(family_.config(), options, instructions));
  });
}

void PromptEnhancer::check(const Options& options) {
  make_job(options, enhance_instructions(options));
}

std::string PromptEnhancer::write(const Options& options, const std::string& instructions,
                                  std::string_view label, Progress& progress) {
  const std::unique_ptr<Job> job = make_job(options, instructions);
  const JobGroup group = {job.get()};
  Text answer;
  Results results;
  results.result = [&](const Result& result, const Report&) {
    check_interrupted();
    answer = result.text();
  };
  as_enhancer(family_.config(), [&] { session_->run(group, progress, results); });
  log_.debug("enhancer: {}", stage_times(session_->report()));
  if (answer.finish_reason == kFinishedByLimit)
    log_.warning("{}the rewritten prompt was stopped by --enhance-max-tokens {}", label,
                 options.enhance.max_tokens);
  std::string prompt = prompt_of_answer(answer.text);
  if (prompt.empty())
    throw InputError(Setting::of("enhancer"), "{}: wrote no text for the prompt {}",
                     model_.model.string(), in_quotes(options.run.prompt()));
  return prompt;
}

void PromptEnhancer::rewrite(Options& options, std::string_view label, Progress& progress) {
  std::string instructions = enhance_instructions(options);
  std::string prompt;
  if (const std::shared_ptr<Ranks>& ranks = options.run.ranks; ranks == nullptr) {
    prompt = write(options, instructions, label, progress);
  } else {
    // Of this very prompt among all that the ranks share.
    const std::string name = fmt::format("prompt {}{} {} {} {} {}", label, model_.model.string(),
                                         model_.drafter.string(), options.enhance.max_tokens,
                                         instructions, options.run.prompt());
    // What is wrong with it is so for all of them: a list goes on without it.
    std::exception_ptr refused;
    const std::string told = ranks->group_text(name, [&]() -> std::string {
      try {
        return kWritten + write(options, instructions, label, progress);
      } catch (const InputError& error) {
        refused = std::current_exception();
        return kRefused + std::string(error.what());
      }
    });
    if (refused) std::rethrow_exception(refused);
    if (told.front() == kRefused) throw InputError("{}", told.substr(1));
    prompt = told.substr(1);
  }
  log_.info("{}prompt: {}", label, prompt);
  set_enhanced_prompt(options, std::move(prompt), std::move(instructions));
}

PromptEnhancer& enhancer_of(const Options& options, PromptEnhancers& opened, Log& log) {
  const auto found =
      std::ranges::find_if(opened, [&](const auto& enhancer) { return enhancer->serves(options); });
  if (found != opened.end()) return **found;
  return *opened.emplace_back(std::make_unique<PromptEnhancer>(options, log));
}

void enhance_prompts(std::span<Options* const> requests, Progress& progress, Log& log) {
  PromptEnhancers opened;
  for (const Options* options : requests) {
    if (enhances(*options)) enhancer_of(*options, opened, log).check(*options);
  }
  for (std::unique_ptr<PromptEnhancer>& enhancer : opened) {
    for (Options* options : requests) {
      if (!enhances(*options) || options->enhanced || !enhancer->serves(*options)) continue;
      enhancer->rewrite(*options, "", progress);
    }
    enhancer.reset();
  }
}

}  // namespace diptych
