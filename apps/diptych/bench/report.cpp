#include "apps/diptych/bench/report.h"

#include <algorithm>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include "apps/diptych/bench/drafting.h"
#include "apps/diptych/record/result_record.h"
#include "lib/base/messages.h"
#include "lib/base/sha256.h"
#include "lib/base/statistics.h"
#include "lib/runtime/runtime.h"
#include "lib/verify/metrics.h"

namespace diptych {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSchema = "diptych.bench";
constexpr int kSchemaVersion = 1;

template <typename Value>
Spread spread_over(const std::vector<BenchRun>& runs, const Value& value) {
  std::vector<double> values;
  for (const BenchRun& run : runs) values.push_back(value(run));
  return spread_of(values);
}

double per_result(const BenchMeasured& m, const BenchRun& run) {
  return run.seconds / static_cast<double>(m.painted.empty() ? m.texts.size() : m.painted.size());
}

// Of what is painted: "image", as the keys have it, or "video".
std::string_view one_of(const BenchMeasured& m) {
  return std::holds_alternative<Clip>(m.painted.front().media) ? "video" : "image";
}
// The same in messages.
std::string_view noun_of(const BenchMeasured& m) {
  return one_of(m) == "video" ? "video" : "picture";
}

double per_step(const BenchMeasured& m, const BenchRun& run) {
  return run.stage("denoise") / static_cast<double>(m.steps());
}

double tokens_per_second(const BenchRun& run) {
  return static_cast<double>(run.tokens) / run.token_seconds;
}

// A line of the table and an entry of the JSON.
struct Quantity {
  std::string name, key;
  Spread spread;
};

std::vector<Quantity> quantities(const BenchMeasured& m) {
  std::vector<Quantity> all;
  const auto add = [&](const std::string& name, const std::string& key, const auto& value) {
    all.push_back({name, key, spread_over(m.runs, value)});
  };
  if (m.painted.empty()) {
    add("answer s", "seconds_per_answer", [&](const BenchRun& run) { return per_result(m, run); });
  } else {
    add(fmt::format("{} s", one_of(m)), fmt::format("seconds_per_{}", one_of(m)),
        [&](const BenchRun& run) { return per_result(m, run); });
    add("step ms", "seconds_per_step", [&](const BenchRun& run) { return per_step(m, run); });
  }
  if (m.runs.front().tokens > 0) add("text tok/s", "tokens_per_second", tokens_per_second);
  return all;
}

std::vector<Quantity> stages(const BenchMeasured& m) {
  std::vector<Quantity> all;
  for (const auto& [name, unused] : m.runs.front().stages) {
    const auto seconds = [&](const BenchRun& run) { return run.stage(name); };
    all.push_back({name + " s", name, spread_over(m.runs, seconds)});
  }
  return all;
}

std::string row(const Quantity& q) {
  const double scale = q.name.ends_with(" ms") ? 1e3 : 1;
  const auto& [name, key, s] = q;
  return fmt::format("  {:<12}{:>11.4f}{:>11.4f}{:>11.4f}{:>11.4f}\n", name, scale * s.min,
                     scale * s.median, scale * s.p90, scale * s.iqr());
}

double gib(std::uint64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(1 << 30);
}

std::string what_ran(const BenchSetting& setting, const BenchMeasured& m) {
  std::vector<std::string> parts = {
      m.ran.dtype, fmt::format("kernels {}", name_of(setting.options().run.kernels)),
      fmt::format("attention {}", m.ran.attention)};
  if (m.ran.quantization != "none") parts.push_back("quantization " + m.ran.quantization);
  if (!m.painted.empty()) {
    const auto pictures = m.painted.size();
    parts.push_back(fmt::format("CFG {}", m.ran.cfg_mode));
    if (m.ran.step_graphs)
      parts.emplace_back(m.ran.kept_step_graphs ? "steps as CUDA graphs of the run before"
                                                : "steps as CUDA graphs");
    parts.push_back(
        fmt::format("{} and {}{}", counted(static_cast<std::size_t>(m.ran.updates), "update"),
                    counted(static_cast<std::size_t>(m.painted.front().forwards), "branch forward"),
                    pictures > 1 ? fmt::format(" a {}", noun_of(m)) : ""));
    if (const auto* clip = std::get_if<Clip>(&m.painted.front().media))
      parts.push_back(counted(static_cast<std::size_t>(clip->shape.frames), "frame"));
  }
  if (m.ran.strips) parts.emplace_back("VAE in strips");
  if (m.ran.offload != "none") parts.push_back("offload " + m.ran.offload);
  if (m.peak_tensor_bytes > 0)
    parts.push_back(fmt::format("peak of tensors {:.2f} GiB", gib(m.peak_tensor_bytes)));
  return fmt::format("{}", fmt::join(parts, ", "));
}

double per_step(std::int64_t count, const BenchMeasured& m) {
  return static_cast<double>(count) / static_cast<double>(m.steps());
}

std::string_view axis_name(RankAxis axis) {
  switch (axis) {
    case RankAxis::cfg:
      return "branches";
    case RankAxis::ulysses:
      return "ulysses";
    case RankAxis::ring:
      return "ring";
    case RankAxis::stage:
      return "stages";
    case RankAxis::request:
      return "decoding";
  }
  TORCH_CHECK(false, "[bench] an axis that is none");
}

double per_result(std::int64_t bytes, const BenchMeasured& m) {
  return static_cast<double>(bytes) / static_cast<double>(m.painted.size());
}

std::string exchanges_text(const BenchMeasured& m) {
  const auto mib = [&](std::int64_t bytes) { return per_result(bytes, m) / (1 << 20); };
  std::vector<std::string> parts;
  for (const auto& [axis, cost] : m.exchanges->axes)
    parts.push_back(fmt::format("{} {:.3f}", axis_name(axis), mib(cost.sent_bytes)));
  return fmt::format(
      "  exchanges: this process sends {:.3f} MiB for {} {} ({}); {:.1f} % of denoising{}\n",
      mib(m.exchanges->sent_bytes()), one_of(m) == "video" ? "a" : "an", one_of(m),
      fmt::join(parts, ", "), 100 * m.exchanges->share_of_denoising(),
      m.ran.step_graphs ? ", of steps launched one by one" : "");
}

std::string setting_table(const BenchCase& planned, std::size_t s, const BenchMeasured& m) {
  const std::string label = planned.settings.size() == 1 ? "" : ", " + planned.settings[s].label;
  std::string text = fmt::format("{}{}: {}; {}\n", planned.name, printable(label),
                                 what_ran(planned.settings[s], m), counted(m.runs.size(), "run"));
  text += fmt::format("  {:<12}{:>11}{:>11}{:>11}{:>11}\n", "", "min", "median", "p90", "IQR");
  for (const Quantity& q : quantities(m)) text += row(q);
  for (const Quantity& q : stages(m)) text += row(q);
  if (m.drafting) text += fmt::format("  drafts: {}\n", m.drafting->summary());
  if (m.launches) {
    text += fmt::format(
        "  a step, {}: {:.1f} kernels, {:.1f} copies and fills; by the host {:.1f} launches, "
        "{:.1f} calls for memory, {:.1f} waits ahead of the last launch\n",
        m.launches_replay ? "replayed" : "not replayed", per_step(m.launches->kernels, m),
        per_step(m.launches->copies, m), per_step(m.launches->calls, m),
        per_step(m.launches->allocations, m), per_step(m.launches->waits, m));
  }
  if (m.exchanges) text += exchanges_text(m);
  if (!m.floors.empty()) text += floor_text(m.floors);
  if (m.kernels) text += kernel_table_text(*m.kernels, m.ran.dtype);
  return text;
}

// Of the second setting to the first, run by run: both of a pair ran one behind the other.
struct Ratio {
  std::string name, key;
  Spread spread;
};

std::vector<Ratio> ratios(const std::vector<BenchMeasured>& settings) {
  const BenchMeasured &a = settings[0], &b = settings[1];
  std::vector<Ratio> all;
  const auto add = [&](std::string name, std::string key, const auto& value) {
    std::vector<double> values;
    for (std::size_t i = 0; i < a.runs.size(); ++i)
      values.push_back(value(b, b.runs[i]) / value(a, a.runs[i]));
    all.push_back({std::move(name), std::move(key), spread_of(values)});
  };
  if (a.painted.empty()) {
    add("an answer", "seconds_per_answer",
        [](const BenchMeasured& m, const BenchRun& run) { return per_result(m, run); });
  } else {
    add(one_of(a) == "video" ? "a video" : "an image", fmt::format("seconds_per_{}", one_of(a)),
        [](const BenchMeasured& m, const BenchRun& run) { return per_result(m, run); });
    add("a step", "seconds_per_step",
        [](const BenchMeasured& m, const BenchRun& run) { return per_step(m, run); });
  }
  if (a.runs.front().tokens > 0) {
    // What drafts gain, where the other setting has none.
    const bool speed_up = a.drafting && !b.drafting;
    add(speed_up ? "speed-up" : "a token", speed_up ? "speed_up" : "seconds_per_token",
        [](const BenchMeasured&, const BenchRun& run) {
          return run.token_seconds / static_cast<double>(run.tokens);
        });
  }
  return all;
}

// Answers of both settings that agree.
std::int64_t same_texts(const std::vector<BenchMeasured>& settings) {
  std::int64_t same = 0;
  for (std::size_t i = 0; i < settings[0].texts.size(); ++i)
    same += settings[0].texts[i] == settings[1].texts[i] ? 1 : 0;
  return same;
}

struct Gap {
  std::optional<ImageMetrics> pixels;  // of pictures; the frames of clips are gone
  Difference latent;
};

// Of each result; nothing where the sizes differ.
std::vector<Gap> gaps_between(const std::vector<BenchMeasured>& settings) {
  std::vector<Gap> all;
  for (std::size_t i = 0; i < settings[0].painted.size(); ++i) {
    const Result &a = settings[0].painted[i], &b = settings[1].painted[i];
    if (a.latent.sizes() != b.latent.sizes()) continue;
    Gap gap{std::nullopt, difference(b.latent, a.latent)};
    if (std::holds_alternative<Picture>(a.media)) {
      if (a.rgb().sizes() != b.rgb().sizes()) continue;
      gap.pixels = image_metrics(b.rgb(), a.rgb());
    }
    all.push_back(gap);
  }
  return all;
}

std::string pixels_text(const ImageMetrics& m) {
  const std::string ssim = m.ssim ? fmt::format("SSIM {:.6f}, ", *m.ssim) : "";
  return fmt::format("{}PSNR {:.2f} dB, max abs {:.0f}; ", ssim, m.psnr, m.difference.max_abs);
}

std::string comparison_table(const BenchCase& planned, const std::vector<BenchMeasured>& settings) {
  const std::string label = printable(planned.settings[1].label);
  std::string text = fmt::format("{}, {} / base, of {}:\n", planned.name, label,
                                 counted(settings[0].runs.size(), "pair"));
  for (const Ratio& r : ratios(settings)) {
    text += fmt::format("  {:<12}{:>11.4f}  (quartiles {:.4f} to {:.4f})\n", r.name,
                        r.spread.median, r.spread.p25, r.spread.p75);
  }
  if (settings[0].painted.empty()) {
    const auto count = static_cast<std::int64_t>(settings[0].texts.size());
    const std::int64_t same = same_texts(settings);
    if (count > 1) return text + fmt::format("  {} of {} answers the same\n", same, count);
    return text + (same == 1 ? "  the same answer\n" : "  another answer\n");
  }
  const auto gaps = gaps_between(settings);
  const std::string_view noun = noun_of(settings[0]);
  if (gaps.empty()) return text + fmt::format("  {}s: of other sizes\n", noun);
  for (std::size_t i = 0; i < gaps.size(); ++i) {
    const auto& [pixels, latent] = gaps[i];
    const std::string number = gaps.size() > 1 ? fmt::format(" {}", i) : "";
    text += fmt::format("  {}{}: {}latent: {}\n", noun, number, pixels ? pixels_text(*pixels) : "",
                        latent.max_abs == 0 ? "the same bits"
                                            : fmt::format("cosine {:.6f}, max abs {:.4g}",
                                                          latent.cosine, latent.max_abs));
  }
  return text;
}

Json runs_json(const std::vector<BenchRun>& runs) {
  Json list = Json::array();
  for (const BenchRun& run : runs) {
    Json json = {{"seconds", run.seconds}, {"stages", Json::object()}};
    for (const auto& [stage, seconds] : run.stages) json["stages"][stage] = seconds;
    if (run.tokens > 0) {
      json["tokens"] = run.tokens;
      json["token_seconds"] = run.token_seconds;
    }
    list.push_back(std::move(json));
  }
  return list;
}

Json inputs_json(const RunConfig& run) {
  Json list = Json::array();
  for (const InputItem& item : run.inputs) {
    if (item.is_text()) {
      list.push_back({{"text", item.text}});
    } else {
      list.push_back({{std::string(input_name(item.kind())), item.file().filename().string()},
                      {"file_sha256", file_sha256(item.file()).value_or("")}});
    }
  }
  return list;
}

Json ran_json(const BenchMeasured& m) {
  Json json = {{"device", m.ran.device},
               {"dtype", m.ran.dtype},
               {"quantization", m.ran.quantization},
               {"tuning", m.ran.tuning},
               {"attention", m.ran.attention}};
  if (!m.painted.empty()) {
    const Result& picture = m.painted.front();
    json["cfg_mode"] = m.ran.cfg_mode;
    json["step_graphs"] = m.ran.step_graphs;
    json["kept_step_graphs"] = m.ran.kept_step_graphs;
    json["updates"] = m.ran.updates;
    json["forwards"] = picture.forwards;
    const ImageSize size = size_of(picture.media);
    json["width"] = size.width;
    json["height"] = size.height;
    if (const auto* clip = std::get_if<Clip>(&picture.media)) {
      json["frames"] = clip->shape.frames;
      json["fps"] = rate_json(clip->shape.fps);
    }
    json["vae_dtype"] = m.ran.vae_dtype;
    json["vae_strips"] = m.ran.strips;
  }
  json["offload"] = m.ran.offload;
  if (m.ran.threads > 0) json["threads"] = m.ran.threads;
  return json;
}

Json results_json(const BenchMeasured& m) {
  Json list = Json::array();
  for (std::size_t i = 0; i < m.painted.size(); ++i) {
    const Result& picture = m.painted[i];
    Json json = {{"index", picture.index},
                 {"seed", picture.seed},
                 {"noise_hash", picture.noise_hash},
                 {"latent_hash", picture.latent_hash}};
    if (!picture.plan.empty()) json["plan"] = picture.plan;
    if (!m.files.empty()) json.update({{"file", m.files[i].name}, {"sha256", m.files[i].sha256}});
    list.push_back(std::move(json));
  }
  return list;
}

// Bytes and seconds of one run by one process; those of an axis count all its pictures or videos.
Json exchanges_json(const BenchSetting& setting, const BenchMeasured& m) {
  const BenchExchanges& exchanges = *m.exchanges;
  Json axes = Json::object();
  for (const auto& [axis, cost] : exchanges.axes) {
    axes[std::string(axis_name(axis))] = {
        {"count", cost.count}, {"sent_bytes", cost.sent_bytes}, {"seconds", cost.seconds}};
  }
  return {{"processes", setting.options().run.ranks->comm().request.size},
          {"degrees",
           {{"cfg", m.degrees.cfg}, {"ulysses", m.degrees.ulysses}, {"ring", m.degrees.ring}}},
          {fmt::format("sent_bytes_per_{}", one_of(m)), per_result(exchanges.sent_bytes(), m)},
          {"share_of_denoising", exchanges.share_of_denoising()},
          {"denoise_seconds", exchanges.denoise_seconds},
          {"axes", std::move(axes)}};
}

Json setting_json(const BenchSetting& setting, const BenchMeasured& m) {
  Json json = {{"label", setting.label},
               {"requested", requested_json(setting.options())},
               {"inputs", inputs_json(setting.options().run)},
               {"ran", ran_json(m)},
               {"repeatable", m.repeatable}};
  for (const Quantity& q : quantities(m)) json[q.key] = spread_json(q.spread);
  json["stages"] = Json::object();
  for (const Quantity& q : stages(m)) json["stages"][q.key] = spread_json(q.spread);
  if (m.peak_tensor_bytes > 0) json["peak_tensor_bytes"] = m.peak_tensor_bytes;
  if (m.launches) {
    json["per_step"] = {{"replayed", m.launches_replay},
                        {"kernels", per_step(m.launches->kernels, m)},
                        {"copies", per_step(m.launches->copies, m)},
                        {"launches", per_step(m.launches->calls, m)},
                        {"memory_calls", per_step(m.launches->allocations, m)},
                        {"waits", per_step(m.launches->waits, m)}};
  }
  if (m.exchanges) json["exchanges"] = exchanges_json(setting, m);
  if (!m.floors.empty()) json["floor"] = floor_json(m.floors);
  if (m.kernels) json["kernels"] = kernel_table_json(*m.kernels);
  if (m.drafting) json["drafting"] = drafting_json(*m.drafting);
  if (m.painted.empty()) {
    Json answers = Json::array();
    for (std::size_t i = 0; i < m.texts.size(); ++i) {
      answers.push_back({{"answer", m.texts[i]}});
      if (!m.files.empty()) answers.back()["file"] = m.files[i].name;
    }
    if (answers.size() == 1) {
      json.update(answers.front());
    } else {
      json["answers"] = std::move(answers);
    }
  } else {
    json[fmt::format("{}s", noun_of(m))] = results_json(m);
  }
  json["warmup_runs"] = runs_json(m.warmups);
  json["runs"] = runs_json(m.runs);
  return json;
}

// JSON has no infinity: the PSNR of equal pictures is null.
Json pixels_json(const ImageMetrics& m) {
  return {{"identical", m.difference.max_abs == 0},
          {"max_abs", m.difference.max_abs},
          {"mean_abs", m.difference.mean_abs},
          {"psnr", m.psnr},
          {"ssim", m.ssim ? Json(*m.ssim) : Json()}};
}

Json comparison_json(const std::vector<BenchMeasured>& settings) {
  Json json = {{"ratio", "against / base, of each pair of runs"}};
  for (const Ratio& r : ratios(settings)) json[r.key] = spread_json(r.spread);
  if (settings[0].painted.empty()) {
    const std::int64_t same = same_texts(settings);
    json["same_answer"] = same == std::ssize(settings[0].texts);
    json["same_answers"] = same;
    return json;
  }
  Json& list = json[fmt::format("{}s", noun_of(settings[0]))] = Json::array();
  for (const auto& [pixels, latent] : gaps_between(settings)) {
    Json gap = pixels ? pixels_json(*pixels) : Json::object();
    gap["latent_cosine"] = latent.cosine;
    gap["latent_max_abs"] = latent.max_abs;
    list.push_back(std::move(gap));
  }
  return json;
}

Json models_json(const BenchPlan& plan, const BenchResult& result) {
  Json list = Json::array();
  for (const BenchModel& model : result.models) {
    list.push_back({{"label", plan.cases.front().settings[model.setting].label},
                    {"weights_hash", model.weights_hash},
                    {"load_seconds", model.load_seconds},
                    {"hash_seconds", model.hash_seconds}});
  }
  return list;
}

Json machine_json(const Report& ran) {
  Json json = {{"device", ran.device}, {"host_threads", std::thread::hardware_concurrency()}};
  Json gpus = Json::array();
  for (const GpuInfo& gpu : list_gpus()) {
    gpus.push_back({{"name", gpu.name},
                    {"capability", fmt::format("{}.{}", gpu.major, gpu.minor)},
                    {"multiprocessors", gpu.multiprocessors},
                    {"bytes", gpu.total_bytes}});
  }
  json["gpus"] = std::move(gpus);
  return json;
}

}  // namespace

std::string bench_table(const BenchPlan& plan, const BenchResult& result) {
  const Report& ran = result.cases.front().front().ran;
  std::string text = printable(ran.device) + "\n";
  for (const BenchModel& model : result.models) {
    const std::string label =
        result.models.size() == 1
            ? ""
            : printable(plan.cases.front().settings[model.setting].label) + ": ";
    text += fmt::format("{}weights {}, load {:.2f} s, hash {:.2f} s\n", label, model.weights_hash,
                        model.load_seconds, model.hash_seconds);
  }
  for (std::size_t c = 0; c < plan.cases.size(); ++c) {
    for (std::size_t s = 0; s < result.cases[c].size(); ++s)
      text += setting_table(plan.cases[c], s, result.cases[c][s]);
    if (result.cases[c].size() > 1) text += comparison_table(plan.cases[c], result.cases[c]);
  }
  if (result.peak_bytes > 0)
    text += fmt::format("peak of GPU memory {:.2f} GiB, ", gib(result.peak_bytes));
  return text + fmt::format("peak of host memory {:.2f} GiB\n", gib(result.peak_host_bytes));
}

Json bench_json(const BenchPlan& plan, const BenchResult& result) {
  Json json = {{"schema", kSchema},
               {"schema_version", kSchemaVersion},
               {"version", DIPTYCH_VERSION},
               {"libtorch", TORCH_VERSION},
               {"machine", machine_json(result.cases.front().front().ran)},
               {"repeats", plan.repeats},
               {"warmup", plan.warmup},
               {"warmup_steps", plan.warmup_steps > 0 ? Json(plan.warmup_steps) : Json()},
               {"percentiles", "linear interpolation"},
               {"models", models_json(plan, result)},
               {"peak_bytes", result.peak_bytes},
               {"peak_host_bytes", result.peak_host_bytes},
               {"cases", Json::array()}};
  for (std::size_t c = 0; c < plan.cases.size(); ++c) {
    Json each = {{"name", plan.cases[c].name},
                 {"together", plan.cases[c].together},
                 {"settings", Json::array()}};
    for (std::size_t s = 0; s < result.cases[c].size(); ++s)
      each["settings"].push_back(setting_json(plan.cases[c].settings[s], result.cases[c][s]));
    if (result.cases[c].size() > 1) each["comparison"] = comparison_json(result.cases[c]);
    json["cases"].push_back(std::move(each));
  }
  return json;
}

}  // namespace diptych
