#include "lib/pipelines/qwen3_dflash/session.h"

#include <algorithm>

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/pipelines/qwen3_dflash/target.h"
#include "lib/pipelines/qwen3_dflash/trace_names.h"
#include "lib/session/make_runtime.h"
#include "lib/tensor/finite.h"

namespace diptych {
namespace {

Qwen3Jobs own_jobs(const JobGroup& group) {
  Qwen3Jobs jobs;
  for (const Job* job : group) jobs.push_back(&dynamic_cast<const Qwen3Job&>(*job));
  return jobs;
}

// Each prompt has its own, so that a text does not depend on what is written beside it.
std::vector<std::uint64_t> seeds_of(const Qwen3Jobs& jobs) {
  std::vector<std::uint64_t> seeds;
  for (const Qwen3Job* job : jobs) seeds.push_back(job->config().sampling.seed);
  return seeds;
}

}  // namespace

Qwen3Session::Qwen3Session(const RunConfig& config, Log& log)
    : config_(config),
      log_(log),
      runtime_(make_runtime(config, log, kSelfAttention, [&] { return stored_qwen3(config); })) {
  reset_peak_memory(runtime_.device);
  report_.device = device_description(runtime_.device);
  report_.dtype = runtime_.dtype == at::kBFloat16 ? "bfloat16" : "float32";
  report_.quantization = name_of(config.quantization);
  report_.tuning = runtime_.tuning.name();
  if (runtime_.device.is_cpu()) report_.threads = at::get_num_threads();
  clock_.start();
  checkpoint_ = std::make_unique<Qwen3Checkpoint>(config_, runtime_);
  log.mark("tokenizer and headers are read");
  require_attention();
  budget_ = MemoryBudget::of(config.max_vram, runtime_);
}

// A backend asked for by name that cannot serve these heads is refused before anything is loaded.
void Qwen3Session::require_attention() const {
  const AttentionBackend& backend = runtime_.read_attention.of(AttentionRole::self);
  const AttentionKind kind{runtime_.device, runtime_.dtype, checkpoint_->config().head_dim};
  if (const auto reason = backend.kind_unsupported(kind))
    throw InputError(attention_setting("read_attention", config_.read_attention),
                     "attention backend {}: {}", backend.name(), *reason);
}

std::unique_ptr<Job> Qwen3Session::make_job(const RunConfig& request) {
  return std::make_unique<Qwen3Job>(request, *checkpoint_);
}

bool Qwen3Session::may_share(const RunConfig& a, const RunConfig& b) const {
  return share_qwen3_forwards(a, b, *checkpoint_);
}

namespace {

// Each text of a run has room for the longest one.
Qwen3RunSizes sizes_of(const Qwen3Jobs& jobs) {
  Qwen3RunSizes sizes;
  std::int64_t longest = 0;
  for (const Qwen3Job* job : jobs) {
    sizes.longest_prompt = std::max(sizes.longest_prompt, std::ssize(job->prompt));
    longest = std::max(longest, job->request.max_new_tokens);
    sizes.block = std::max(sizes.block, job->request.block_size);
  }
  sizes.texts = std::ssize(jobs);
  sizes.rows = sizes.texts * (sizes.longest_prompt + longest);
  return sizes;
}

}  // namespace

MemoryPlan Qwen3Session::plan(const Qwen3Jobs& jobs) const {
  Qwen3RunSizes sizes = sizes_of(jobs);
  sizes.graphs = jobs.front()->request.graphs && !jobs.front()->is_traced();
  return fit_memory(qwen3_costs(*checkpoint_, sizes, runtime_), {}, budget_);
}

void Qwen3Session::load(std::span<const JobGroup> expected, Progress& progress) {
  if (checkpoint_->is_loaded()) return;
  std::vector<Qwen3Jobs> runs;
  for (const JobGroup& group : expected) runs.push_back(own_jobs(group));
  if (runs.empty()) return;
  try {
    read_weights(runs, progress);
  } catch (const InputError&) {  // run() will say so, of each request alone
    if (checkpoint_->is_loaded()) throw;
    why_not_loaded_ = std::current_exception();
  }
}

// Where one of the runs has room.
void Qwen3Session::read_weights(std::span<const Qwen3Jobs> runs, Progress& progress) {
  clock_.start();
  const auto needs = [](const Qwen3Jobs& run) { return sizes_of(run).rows; };
  const MemoryPlan least = plan(*std::ranges::min_element(runs, {}, needs));
  if (budget_.limited)
    limit_memory(runtime_.device, static_cast<std::uint64_t>(*budget_.device - kCudaBytes));
  log_.debug("memory planned: {}", least.summary());
  checkpoint_->load(progress);
  log_quantization();
  writer_.emplace(text_target(checkpoint_->target()), checkpoint_->loaded_drafter(), runtime_);
  weights_hash_ = std::make_unique<BackgroundHash>(
      [this](const std::stop_token& stop) { return checkpoint_->weights_hash(stop); });
  clock_.lap(report_, "load", runtime_.device);
  log_.mark("weights are read");
}

void Qwen3Session::log_quantization() {
  if (runtime_.quantization == Quantization::none) return;
  const auto bytes = [&](const MatrixFormat& format) {
    const auto of = [&](const QwenConfig& layers) {
      return layers.num_hidden_layers * QwenLayer::matrix_bytes(layers, format);
    };
    const OpenedDrafter* drafter = checkpoint_->drafter();
    return of(checkpoint_->config()) + (drafter != nullptr ? of(drafter->config().decoder) : 0);
  };
  log_.info("{}", quantization_note({runtime_.dtype, runtime_.quantization},
                                    "the projections of the decoder layers", bytes,
                                    "the rest of the model stays as it is"));
}

std::string Qwen3Session::weights_hash() {
  if (weights_hash_ == nullptr && why_not_loaded_) std::rethrow_exception(why_not_loaded_);
  TORCH_CHECK(weights_hash_ != nullptr, "[session] the hash of weights that were not loaded");
  return weights_hash_->get();
}

void Qwen3Session::run(const JobGroup& group, Progress& progress, const Results& results) {
  const Qwen3Jobs jobs = own_jobs(group);
  const RunConfig& first = jobs.front()->config();
  std::optional<TraceSink> trace;
  if (jobs.front()->is_traced()) trace.emplace(first.trace_filter);
  std::vector<TextStream> streams;
  for (const Qwen3Job* job : jobs) streams.emplace_back(checkpoint_->tokenizer(), job->stops);
  std::int64_t written = 0;
  SpeculativeObserver observer;
  observer.accepted = [&](std::size_t prompt, std::span<const std::int64_t> ids) {
    check_interrupted();
    written += std::ssize(ids);
    const std::string piece = streams[prompt].add(ids);
    if (results.piece && !piece.empty()) {
      results.piece(prompt, piece);
    } else {
      progress.update(written);
    }
    return !streams[prompt].stopped();
  };
  if (trace) observer.trace = [&](std::size_t) { return TextTrace(&*trace, kDraftedText); };
  const std::vector<SpeculativeText> texts = write(jobs, observer, progress);
  give(jobs, texts, streams, results);
  warn_of_limit(jobs, texts);
  if (!trace) return;
  if (trace->tensors().empty())
    log_.warning("--trace-filter {}: matches no tensor of this run",
                 fmt::join(first.trace_filter, ";"));
  trace->write(first.trace);
}

std::vector<SpeculativeText> Qwen3Session::write(const Qwen3Jobs& jobs,
                                                 const SpeculativeObserver& observer,
                                                 Progress& progress) {
  const c10::InferenceMode inference;
  clock_.start();
  if (!checkpoint_->is_loaded()) read_weights(std::span(&jobs, 1), progress);
  plan(jobs);  // throws where there is no room
  log_why_uncaptured(*jobs.front());
  runtime_.read_attention.of(AttentionRole::self).forget_served();
  std::vector<std::vector<std::int64_t>> prompts;
  for (const Qwen3Job* job : jobs) prompts.push_back(job->prompt);
  const SpeculativeRequest& request = jobs.front()->request;
  const NoiseRows noise = seeded_noise(seeds_of(jobs), checkpoint_->config().vocab_size);
  progress.begin("answer", request.max_new_tokens * std::ssize(jobs));
  try {
    std::vector<SpeculativeText> texts = writer_->write(prompts, request, noise, observer);
    progress.end();
    return texts;
  } catch (const NotFinite& error) {
    log_.info("{}; looking through the weights for the cause", error.what());
    checkpoint_->require_finite_weights();
    throw;
  }
}

// Behind the results, which end the last line of a text that is streamed.
void Qwen3Session::warn_of_limit(const Qwen3Jobs& jobs, std::span<const SpeculativeText> texts) {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].finish_reason == kFinishedByLimit)
      log_.warning_once(
          fmt::format("an answer was stopped by --max-tokens {}", jobs[i]->request.max_new_tokens));
  }
}

// Why tokens or blocks that could be CUDA graphs are launched one by one.
void Qwen3Session::log_why_uncaptured(const Qwen3Job& job) {
  if (!job.request.graphs) {
    if (runtime_.device.is_cpu())
      log_.warning_once("enforce_eager: has no effect on the CPU, which has no graphs");
    return;
  }
  if (runtime_.device.is_cpu()) return;
  const std::int64_t block = drafted_block(checkpoint_->drafter(), job.request.block_size);
  const auto reason = blocks_uncaptured(*checkpoint_, block, runtime_);
  if (reason) log_.info_once(fmt::format("texts are written without CUDA graphs: {}", *reason));
  if (!reason && job.is_traced())
    log_.info_once("a text that is traced is written without CUDA graphs");
}

void Qwen3Session::give(const Qwen3Jobs& jobs, const std::vector<SpeculativeText>& texts,
                        std::vector<TextStream>& streams, const Results& results) {
  std::vector<Text> given;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const SpeculativeText& written = texts[i];
    const std::string rest = streams[i].finish();
    if (results.piece && !rest.empty()) results.piece(i, rest);
    Text text;
    text.text = streams[i].text();
    text.finish_reason = streams[i].stopped() ? kFinishedItself : written.finish_reason;
    text.tokens = std::ssize(written.ids);
    text.seconds = written.seconds;
    const std::int64_t block = drafted_block(checkpoint_->drafter(), jobs[i]->request.block_size);
    if (block > 1) text.drafting = DraftingReport{block, written.acceptance, written.switched_off};
    given.push_back(std::move(text));
  }
  count(texts, given);
  if (std::ranges::any_of(texts, &SpeculativeText::switched_off))
    log_.info_once("the drafter is left out of texts that it was measured to slow down");
  for (std::size_t i = 0; i < given.size(); ++i) {
    Result result;
    result.request = i;
    result.seed = jobs[i]->config().sampling.seed;
    result.media = std::move(given[i]);
    results.result(result, report_);
  }
}

// Texts that are written together take their time together.
void Qwen3Session::count(const std::vector<SpeculativeText>& texts,
                         const std::vector<Text>& given) {
  double seconds = 0;
  for (const SpeculativeText& text : texts) seconds = std::max(seconds, text.seconds);
  for (const Text& text : given) {
    report_.tokens += text.tokens;
    if (!text.drafting) continue;
    if (!report_.drafting) report_.drafting.emplace();
    report_.drafting->add(*text.drafting);
  }
  report_.token_seconds += seconds;
  report_.attention = runtime_.read_attention.of(AttentionRole::self).served_by();
  clock_.lap(report_, "prefill", "text", seconds, runtime_.device);
}

Report Qwen3Session::report() const {
  Report report = report_;
  if (report.token_seconds > 0)
    report.tokens_per_second = static_cast<double>(report.tokens) / report.token_seconds;
  report.peak_bytes = peak_memory_bytes(runtime_.device);
  return report;
}

}  // namespace diptych
