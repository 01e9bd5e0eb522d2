// One run of a model on a MoT backbone: contexts are read, plans and answers written, pictures
// painted.
#include <algorithm>
#include <utility>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "lib/pipelines/calibration.h"
#include "lib/pipelines/mot/cfg_mode.h"
#include "lib/pipelines/mot/packing.h"
#include "lib/pipelines/mot/session.h"
#include "lib/pipelines/mot/settings.h"
#include "lib/pipelines/mot/step_capture.h"
#include "lib/pipelines/mot/trace.h"
#include "lib/session/make_runtime.h"
#include "lib/tensor/finite.h"

namespace diptych {

MotTurns MotSession::turns_of(MotJobs jobs) {
  MotTurns turns;
  for (const MotJob* job : jobs) {
    turns.push_back(job->turn());
    if (jobs.front()->official_batch) turns.back()->generator = turns.front()->generator;
  }
  return turns;
}

void MotSession::run(const JobGroup& jobs, Progress& progress, const Results& results) {
  std::vector<MotJob*> own = mot_jobs(jobs);
  const RunConfig& first = own.front()->config();
  if (first.trace.empty()) return run_traced(own, nullptr, progress, results);
  TraceSink sink(first.trace_filter);
  run_traced(own, own.front()->trace(sink).get(), progress, results);
  if (sink.tensors().empty()) {
    log_.warning("--trace-filter {}: matches no tensor of this run",
                 fmt::join(first.trace_filter, ";"));
  }
  sink.write(first.trace);
}

void MotSession::run_traced(MotJobs jobs, MotTrace* trace, Progress& progress,
                            const Results& results) {
  const bool answers = jobs.front()->answers();
  if (answers) drop_kept_steps();
  for (MotJob* job : jobs) job->read_inputs();
  get_ready(jobs, progress);
  // A record tells what served this run, whatever the session did before.
  runtime_.read_attention.of(AttentionRole::self).forget_served();
  try {
    if (answers) return answer(*jobs.front(), trace, progress, results);
    if (stage_ == StageRole::reads) return hand_over(jobs, progress);
    paint(jobs, trace, progress, results);
  } catch (const NotFinite& error) {
    rehearsal_.finish(log_);
    drop_kept_steps();
    log_.info("{}; looking through the weights for the cause", error.what());
    checkpoint_->require_finite_weights();
    throw;
  } catch (const Interrupted&) {
    throw;
  } catch (...) {  // memory may have been short
    rehearsal_.finish(log_);
    drop_kept_steps();
    throw;
  }
}

// Before anything is read or painted, at the price of the hash: as long as reading all weights.
void MotSession::require_calibration(const MotJob& job) {
  report_.calibration_hash.clear();
  if (!job.calibration) return;
  report_.weights_hash = weights_hash();
  clock_.lap(report_, "hash", runtime_.device);
  const std::filesystem::path path = calibration_path(job.config());
  job.calibration->require_weights(
      path, StepCalibration::as_loaded(report_.weights_hash, config_.quantization));
  report_.calibration_hash = job.calibration->file_hash;
}

PrefilledContexts MotSession::read_contexts(std::span<const std::unique_ptr<MotTurn>> turns,
                                            ContextsRequest request) {
  MotTrace* const trace = request.trace;
  request.read_image = [&](std::int64_t sample, const ImageSegment& segment, const MotSample& block,
                           const std::string& name) {
    return turns[static_cast<std::size_t>(sample)]->read_image(segment, block, name, trace);
  };
  return PrefilledContexts::read(checkpoint_->mot(), request, runtime_);
}

// The answer, or the plan of think mode. `contexts` is left with what was read for it.
GeneratedText MotSession::write(const std::unique_ptr<MotTurn>& turn, MotTrace* trace,
                                Progress& progress, std::optional<PrefilledContexts>& contexts) {
  const MotJob& job = turn->job();
  std::vector<BranchContexts> branches = turn->branches;
  const bool last_reader = job.answers() && trace != nullptr;
  if (!last_reader) branches.resize(1);  // an answer has one branch; a trace names all
  // The writer has a cache of its own, so that no rows are added here.
  ContextsRequest reading;
  reading.observer = writer_->watch(branches.front().samples.front(), job.text, trace);
  reading.branches = std::move(branches);
  reading.own_rows = {0};
  reading.trace = trace;
  contexts.emplace(read_contexts(std::span(&turn, 1), std::move(reading)));
  if (last_reader) trace->contexts(*contexts);
  if (drafter_ && job.text.block_size != 1) {
    if (trace != nullptr) {
      log_.info_once("a text that is traced is written without the drafter");
    } else if (runtime_.device.is_cuda()) {
      log_.info_once("drafted texts are launched one operation at a time, without CUDA graphs");
    }
  }
  GeneratedText written = writer_->write(*contexts, 0, job.text, turn->generator,
                                         job.answers() ? "answer" : "think", trace, progress);
  if (!job.answers()) turn->keep_plan(written);
  // The end marker was computed, too, but is no token of the text.
  report_.tokens += std::ssize(written.ids);
  report_.token_seconds += written.seconds;
  if (written.drafting) {
    if (!report_.drafting) report_.drafting.emplace();
    report_.drafting->add(*written.drafting);
  }
  if (!job.answers()) warn_of_limit(job, written);
  clock_.lap(report_, "prefill", "text", written.seconds, runtime_.device);
  return written;
}

void MotSession::warn_of_limit(const MotJob& job, const GeneratedText& written) {
  if (written.finish_reason != kFinishedByLimit) return;
  const RunConfig& run = job.config();
  log_.warning_once(fmt::format("{} was stopped by {} {}", job.answers() ? "an answer" : "a plan",
                                run.think ? "--max-think-tokens" : "--max-tokens",
                                run.think ? run.text.max_think_tokens : run.text.max_tokens));
}

void MotSession::answer(MotJob& job, MotTrace* trace, Progress& progress, const Results& results) {
  const std::unique_ptr<MotTurn> turn = job.turn();
  std::optional<PrefilledContexts> contexts;
  const GeneratedText written = write(turn, trace, progress, contexts);
  report_.attention = runtime_.read_attention.of(AttentionRole::self).served_by();
  Result result;
  result.seed = job.config().sampling.seed;
  result.media = Text{.text = turn->text_of(written.ids),
                      .finish_reason = written.finish_reason,
                      .tokens = std::ssize(written.ids) - 1,
                      .seconds = written.seconds,
                      .drafting = written.drafting};
  result.inputs = job.inputs;
  results.result(result, report_);  // which ends the last line of a text that is streamed
  warn_of_limit(job, written);
}

// Those for which there is no room beside a step that is captured anew.
void MotSession::give_up_kept_steps() {
  kept_.make_room(
      memory_->room_beside_kept_step(), [](const MotPainter&) { return false; }, 0);
}

// One that is kept and serves, or a new one. A trace looks into steps that are launched one by one.
std::unique_ptr<MotPainter> MotSession::painter_of(const PaintRequest& paint,
                                                   PrefilledContexts contexts, MotTrace* trace) {
  const auto serves = [&](const MotPainter& kept) {
    return trace == nullptr && kept.serves(paint, contexts);
  };
  std::unique_ptr<MotPainter> kept = kept_.take(serves);
  // A rank that replays exchanges less than one that captures.
  if (on_all_ranks(kept != nullptr, runtime_) && kept != nullptr) {
    kept->take(contexts);
    return kept;
  }
  kept.reset();
  give_up_kept_steps();
  return std::make_unique<MotPainter>(checkpoint_->mot(), paint, std::move(contexts), runtime_);
}

void MotSession::keep(std::unique_ptr<MotPainter> painter) {
  if (painter != nullptr && painter->has_captured(painter->request()))
    kept_.add(std::move(painter), memory_->plan().kept_step_bytes());
}

// Of --cfg-mode auto: measured once for each kind of step. `looked_into`: by a trace or a recorder.
CfgMode MotSession::choose_cfg_mode(const PaintRequest& paint, const PrefilledContexts& contexts,
                                    bool looked_into) {
  PaintRequest measured = paint;
  // As the steps will run: none is captured that something looks into.
  measured.step_graphs &= !paint.caches() && !looked_into;
  if (contexts.distinct() == 1) return CfgMode::batched;  // the same either way
  const std::string kind =
      describe_step(measured, contexts, memory_->pixels_per_row()) + division_text(runtime_);
  if (!on_all_ranks(memory_->plan().choice.batched, runtime_)) {
    log_.warning_once("--cfg-mode auto: sequential for " + kind + ": batched does not fit");
    return CfgMode::sequential;
  }
  if (const auto known = cfg_modes_.find(kind); known != cfg_modes_.end()) return known->second;
  give_up_kept_steps();  // what is measured captures steps, too
  clock_.lap(report_, "prefill", runtime_.device);
  Log quiet(LogLevel::quiet);
  // Its attention notes what served the measured steps, which the picture's record does not tell.
  const Runtime apart = make_runtime(config_, quiet);
  const CfgModeTimes times = time_widest_step(checkpoint_->mot(), measured, contexts, apart);
  CfgMode faster = times.sequential < times.batched ? CfgMode::sequential : CfgMode::batched;
  if (runtime_.ranks != nullptr) {  // clocks differ, and all must take the same
    const std::string taken = runtime_.ranks->group_text(
        "cfg_mode." + kind, [faster] { return std::string(name_of(faster)); });
    faster = taken == name_of(CfgMode::sequential) ? CfgMode::sequential : CfgMode::batched;
  }
  log_.info("--cfg-mode auto: {} for {} (a step: batched {:.1f} ms, sequential {:.1f} ms)",
            name_of(faster), kind, 1e3 * times.batched, 1e3 * times.sequential);
  clock_.lap(report_, "measure", runtime_.device);
  return cfg_modes_[kind] = faster;
}

// Why steps that could be CUDA graphs are launched one by one.
void MotSession::log_why_uncaptured(const PaintRequest& paint) {
  const bool cuda = runtime_.device.is_cuda();
  if (!cuda && !paint.step_graphs)
    log_.warning_once("enforce_eager: has no effect on the CPU, which has no graphs");
  if (cuda && paint.step_graphs && !paint.caches() &&
      !captures_steps(paint, checkpoint_->mot(), runtime_)) {
    log_.warning_once(runtime_.kernels == KernelPolicy::reference
                          ? "denoise steps are launched one by one: --kernels reference"
                          : "denoise steps are launched one by one: weights come from the host");
  }
}

bool MotSession::keeps_graphs(const MotJob& job) const {
  if (!expects_more_ && job.config().sampling.batch_count == 1) return false;
  return on_all_ranks(memory_->room_beside_kept_step() >= 0, runtime_);
}

// Plans and contexts of all turns.
PrefilledContexts MotSession::read_all(MotTurns& turns, const PaintRequest& paint, MotTrace* trace,
                                       Progress& progress, const Results& results) {
  std::optional<PrefilledContexts> thought;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const std::unique_ptr<MotTurn>& turn = turns[i];
    if (!turn->job().config().think) continue;
    write(turn, trace, progress, thought);
    if (results.plan) results.plan(i, *turn->plan, turn->plan_finish_reason);
  }
  progress.begin("prefill", 1);
  for (const auto& turn : turns) {  // without a plan they were when the job was made
    if (turn->plan) check_positions(turn->job(), turn->branches, true, checkpoint_->mot());
  }
  const bool one = turns.size() == 1 && thought.has_value();
  ContextsRequest reading = packed_reading(turns, paint);
  reading.earlier = one ? &*thought : nullptr;
  reading.trace = trace;
  return read_contexts(turns, std::move(reading));
}

std::unique_ptr<MotPainter> MotSession::read(MotTurns& turns, const PaintRequest& packed,
                                             bool taken, MotTrace* trace, Progress& progress,
                                             const Results& results) {
  const MotJob& first = turns.front()->job();
  PaintRequest paint = packed;
  paint.keep_graphs = keeps_graphs(first);
  if (taken) progress.begin("prefill", 1);
  PrefilledContexts contexts =
      taken ? take_over(turns, paint, results) : read_all(turns, paint, trace, progress, results);
  if (trace != nullptr) trace->contexts(contexts);
  log_why_uncaptured(paint);
  if (!first.config().cfg_mode)
    paint.cfg_mode = choose_cfg_mode(paint, contexts, trace != nullptr || first.records_steps);
  log_.debug("{} distinct contexts", contexts.distinct());
  std::unique_ptr<MotPainter> painter = painter_of(paint, std::move(contexts), trace);
  progress.update(1);
  progress.end();
  clock_.lap(report_, "prefill", runtime_.device);
  log_.mark("prefill is through");
  return painter;
}

// What each turn has drawn and planned, then what all have read.
void MotSession::hand_over(MotJobs jobs, Progress& progress) {
  const MotJob& first = *jobs.front();
  const PaintRequest packed = packed_request(jobs);
  MotTurns turns = turns_of(jobs);
  for (std::int64_t i = 0; i < first.config().sampling.batch_count; ++i) {
    if (i > 0 && !reads_anew(jobs)) break;
    seed(turns, i, true);
    const std::int64_t tokens = report_.tokens;
    const double seconds = report_.token_seconds;
    const PrefilledContexts contexts = read_all(turns, packed, nullptr, progress, {});
    progress.update(1);
    progress.end();
    Handoff handoff;
    nlohmann::json json = {{"tokens", report_.tokens - tokens},
                           {"token_seconds", report_.token_seconds - seconds},
                           {"turns", nlohmann::json::array()}};
    for (const auto& turn : turns) {
      nlohmann::json plan;  // null without one
      if (turn->plan) plan = {{"ids", turn->plan_ids}, {"finish_reason", turn->plan_finish_reason}};
      json["turns"].push_back(std::move(plan));
      handoff.tensors.push_back(turn->generator.get_state());
    }
    handoff.text = json.dump();
    for (Tensor& rows : contexts.rows()) handoff.tensors.push_back(std::move(rows));
    config_.stage_end->send(handoff, runtime_.device);
    clock_.lap(report_, "prefill", runtime_.device);
  }
}

PrefilledContexts MotSession::take_over(MotTurns& turns, const PaintRequest& paint,
                                        const Results& results) {
  const Handoff handoff = config_.stage_end->receive(runtime_.device);
  const auto json = nlohmann::json::parse(handoff.text);
  report_.tokens += json["tokens"].get<std::int64_t>();
  report_.token_seconds += json["token_seconds"].get<double>();
  for (std::size_t i = 0; i < turns.size(); ++i) {
    MotTurn& turn = *turns[i];
    turn.generator.set_state(handoff.tensors[i].cpu());
    const nlohmann::json& plan = json["turns"][i];
    if (plan.is_null()) continue;
    GeneratedText written;
    written.ids = plan["ids"].get<std::vector<std::int64_t>>();
    written.finish_reason = plan["finish_reason"];
    turn.keep_plan(written);
    warn_of_limit(turn.job(), written);
    if (results.plan) results.plan(i, *turn.plan, turn.plan_finish_reason);
  }
  const ContextsRequest request = packed_reading(turns, paint);
  PrefilledContexts contexts = PrefilledContexts::received(
      checkpoint_->mot(), request, runtime_, std::span(handoff.tensors).subspan(turns.size()));
  synchronize(runtime_.device);  // what was received may be written over
  return contexts;
}

// Whether each picture of the request has readings of its own.
bool MotSession::reads_anew(MotJobs jobs) {
  return std::ranges::any_of(jobs, [](const MotJob* job) { return job->reading_draws; });
}

// Of picture `index` of the request. A turn begins with the seed of the first one.
void MotSession::seed(MotTurns& turns, std::int64_t index, bool reads) {
  if (index == 0) return;
  for (const auto& turn : turns) {
    const std::uint64_t seed =
        turn->job().config().sampling.seed + static_cast<std::uint64_t>(index);
    if (reads) {
      turn->seed(seed);
    } else {
      turn->reseed(seed);
    }
  }
}

void MotSession::paint(MotJobs jobs, MotTrace* trace, Progress& progress, const Results& results) {
  const MotJob& first = *jobs.front();
  require_calibration(first);
  const PaintRequest packed = packed_request(jobs);
  MotTurns turns = turns_of(jobs);
  std::unique_ptr<MotPainter> painter;
  for (std::int64_t i = 0; i < first.config().sampling.batch_count; ++i) {
    const bool reads = painter == nullptr || reads_anew(jobs);
    seed(turns, i, reads);
    if (reads) {
      keep(std::move(painter));
      painter = read(turns, packed, stage_ == StageRole::paints, trace, progress, results);
      if (i == 0) report_.kept_step_graphs = painter->forwards() > 0;  // it has painted
    }
    paint_once(*painter, turns, static_cast<std::uint64_t>(i), trace, progress, results);
  }
  if (expects_more_) {
    keep(std::move(painter));
  } else {
    drop_kept_steps();  // of pictures of this request that were read anew
  }
}

void MotSession::paint_once(MotPainter& painter, MotTurns& turns, std::uint64_t index,
                            MotTrace* trace, Progress& progress, const Results& results) {
  std::vector<Result> painted = maker_.paint(painter, turns, index, trace, progress);
  for (Result& result : painted) clock_.watch_decoding(result);
  report_.attention = painter.attention();
  report_.cfg_mode = name_of(painter.request().cfg_mode);
  report_.weights_hash = weights_hash();
  clock_.lap(report_, "hash", runtime_.device);
  // A clip has a stage of its own, of its frames, while the receiver decodes it.
  const bool clips = std::ranges::any_of(
      painted, [](const Result& result) { return std::holds_alternative<Clip>(result.media); });
  if (!clips) progress.begin("encode", std::ssize(painted));
  for (const Result& result : painted) {
    report_.latent_hashes.push_back(result.latent_hash);
    results.result(result, report_);
    if (!clips) progress.update(static_cast<std::int64_t>(result.request) + 1);
  }
  progress.end();
  clock_.lap_encoding(report_, runtime_.device);
}

}  // namespace diptych
