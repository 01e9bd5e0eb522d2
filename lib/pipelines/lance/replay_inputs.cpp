// Recorded cases of what Lance reads: pixels of sources, tokens and positions of sequences.
#include <array>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/media/image_read.h"
#include "lib/models/qwen/vision_layout.h"
#include "lib/models/qwen_mot/latent_positions.h"
#include "lib/ops/ops.h"
#include "lib/pipelines/lance/checkpoint.h"
#include "lib/pipelines/lance/positions.h"
#include "lib/pipelines/lance/preprocess.h"
#include "lib/pipelines/lance/replay_parts.h"
#include "lib/pipelines/recorded_values.h"
#include "lib/tensor/safetensors.h"
#include "lib/text/byte_level_bpe.h"

namespace diptych {
namespace {

using Json = nlohmann::json;

Tensor ints(const std::vector<std::int64_t>& values) {
  return at::tensor(values, at::kLong);
}

std::string place_of(const RecordedCase& recorded) {
  return (recorded.folder / "case.json").string();
}

// Of an entry of case.json.
template <typename T>
T value_of(const RecordedCase& recorded, const Json& entry, const char* key) {
  try {
    return entry.at(key).get<T>();
  } catch (const Json::exception&) {
    throw InputError("{}: {}: missing or of another type in {}", place_of(recorded), key,
                     entry.dump());
  }
}

template <typename Choice>
Choice choice_of(const RecordedCase& recorded, const Json& entry, const char* key) {
  const auto name = value_of<std::string>(recorded, entry, key);
  if (const auto choice = parse_choice<Choice>(name)) return *choice;
  throw InputError("{}: {}: found '{}', which this version does not know", place_of(recorded), key,
                   name);
}

// uint8 [H, W, 3] behind normalised pixels [3, frames, H, W].
Tensor levels(const Tensor& pixels, bool vit) {
  constexpr std::array<float, 3> kMean = {0.48145466F, 0.4578275F, 0.40821073F},
                                 kDeviation = {0.26862954F, 0.26130258F, 0.27577711F},
                                 kHalf = {0.5F, 0.5F, 0.5F};
  const auto per_channel = [](const std::array<float, 3>& values) {
    return at::tensor(values, at::kFloat).view({3, 1, 1});
  };
  const Tensor unit = pixels.select(1, 0) * per_channel(vit ? kDeviation : kHalf) +
                      per_channel(vit ? kMean : kHalf);
  return (unit * 255).round().to(at::kByte).permute({1, 2, 0});
}

// One picture as one of the two sees it, held against the recorded pixels.
void replay_picture(const RecordedCase& recorded, const Json& item, TraceSink& trace) {
  const std::filesystem::path file = value_of<std::string>(recorded, item, "input");
  const auto stream = value_of<std::string>(recorded, item, "stream");
  const auto resolution = choice_of<LanceResolution>(recorded, item, "resolution");
  const bool vit = stream == "vit";
  const std::array frames = {read_image(recorded.folder / file)};
  const Tensor pixels =
      vit ? lance_vit_pixels(frames, resolution) : lance_vae_pixels(frames, resolution);
  const std::string stem = fmt::format("{}.{}", file.stem().string(), stream);
  const auto expected = read_image(recorded.folder / fmt::format("expected.{}.png", stem));
  if (!at::equal(levels(pixels, vit), expected))
    throw CheckFailed(fmt::format("{}: other pixels than recorded", stem));
  trace.record(stem + ".normalized_rows0_8", pixels.select(1, 0).slice(1, 0, 8));
  if (!vit) return;
  const Tensor patches = vision_patches(pixels, QwenVisionConfig());
  trace.record(stem + ".patches_first8", patches.slice(0, 0, 8));
  trace.record(stem + ".patches_colsum", patches.sum(1));
}

void require_refused(const RecordedCase& recorded, const Json& row) {
  try {
    sample_frames(value_of<std::int64_t>(recorded, row, "frames"),
                  value_of<double>(recorded, row, "fps"));
  } catch (const InputError&) {
    return;
  }
  throw CheckFailed("frames are sampled where the recorded code failed: " + row.dump());
}

void replay_preprocess(const RecordedCase& recorded, TraceSink& trace) {
  for (const Json& item : recorded_field<Json>(recorded, "/items")) {
    if (item.contains("stream")) {
      replay_picture(recorded, item, trace);
      continue;
    }
    const std::filesystem::path file = value_of<std::string>(recorded, item, "input");
    trace.record(file.stem().string() + ".frame_indices",
                 ints(sample_frames(value_of<std::int64_t>(recorded, item, "frames"),
                                    value_of<double>(recorded, item, "fps"))));
  }
  for (const Json& row : recorded_field<Json>(recorded, "/frame_sampler_table")) {
    if (row.contains("indices") && row["indices"].is_string()) {  // the official code failed
      require_refused(recorded, row);
      continue;
    }
    const auto expected = value_of<std::vector<std::int64_t>>(recorded, row, "indices");
    if (sample_frames(value_of<std::int64_t>(recorded, row, "frames"),
                      value_of<double>(recorded, row, "fps")) != expected)
      throw CheckFailed("other frames are sampled than recorded: " + row.dump());
  }
}

LancePrompt prompt_of(const RecordedCase& recorded, LanceTask task, const Json& data) {
  if (data.is_string()) {
    const std::vector<LanceElement> text = {{LanceMedium::text, data.get<std::string>()}};
    return render_prompt(task, text);
  }
  const auto array = value_of<Json>(recorded, data, "interleave_array");
  if (is_question(task)) {
    const auto texts = array.at(1).get<std::array<std::string, 3>>();
    return render_question({texts[0], texts[1], texts[2]});
  }
  std::vector<LanceElement> elements;
  const auto kinds = value_of<std::vector<std::string>>(recorded, data, "element_dtype_array");
  for (std::size_t i = 0; i < kinds.size(); ++i)
    elements.push_back(
        {parse_choice<LanceMedium>(kinds[i]).value(), array.at(i).get<std::string>()});
  return render_prompt(task, elements);
}

// The grids are what a layout is made of: [n, 3], sides doubled.
std::vector<LanceGrid> grids_of(const Tensor& thw) {
  std::vector<LanceGrid> grids;
  for (std::int64_t i = 0; i < thw.size(0); ++i) {
    const auto* grid = thw.const_data_ptr<std::int64_t>() + 3 * i;
    grids.push_back({grid[0], grid[1] / 2, grid[2] / 2});
  }
  return grids;
}

void replay_layout(const RecordedCase& recorded, const Json& entry, const Tokenizer& tokenizer,
                   const SafetensorsFile& expected, TraceSink& trace) {
  const auto name = value_of<std::string>(recorded, entry, "name");
  const auto task = choice_of<LanceTask>(recorded, entry, "task");
  const Tensor thw = expected.view(name + ".video_grid_thw");
  const LancePrompt prompt = prompt_of(recorded, task, entry.at("data").front());
  const LanceLayout layout = LanceLayout::of(prompt, grids_of(thw), tokenizer);
  const auto record = [&](const char* what, const Tensor& value) {
    trace.record(fmt::format("{}.{}", name, what), value);
  };
  record("video_grid_thw", thw);
  record("input_ids", ints(layout.ids));
  std::vector<std::int64_t> modality;
  for (const LanceModality each : layout.modality)
    modality.push_back(static_cast<std::int64_t>(each));
  record("modality", ints(modality));
  if (is_question(task)) {
    const Tensor recorded_ids = expected.view(name + ".pos.cond");
    const Tensor known = positions(layout.cut_for_answer(tokenizer));
    const std::int64_t next = known.max().item<std::int64_t>() + 1;
    const std::int64_t more = recorded_ids.size(1) - known.size(1);
    return record("pos.cond",
                  at::cat({known, at::arange(next, next + more, at::kLong).expand({3, more})}, 1));
  }
  const LanceLayout uncond = layout.without_caption();
  record("pos.cond", positions(layout));
  record("pos.cond.raw", raw_positions(layout));
  record("pos.text_uncond", positions(uncond));
}

void replay_tables(const SafetensorsFile& expected, TraceSink& trace) {
  const LatentTable table;
  const Tensor index = expected.view("latent_pos_embed.index");
  // Rows of the table by their number: frames first.
  const auto rows = [&](const Tensor& at, std::int64_t hidden) {
    const std::int64_t frame = table.side * table.side;
    std::vector<Tensor> found;
    for (std::int64_t i = 0; i < at.size(0); ++i) {
      const auto number = at[i].item<std::int64_t>();
      const std::int64_t t = number / frame, h = number % frame / table.side,
                         w = number % table.side;
      found.push_back(table.rows(t + 1, h + 1, w + 1, hidden)[-1]);
    }
    return at::stack(found);
  };
  trace.record("latent_pos_embed.index", index);
  trace.record("latent_pos_embed.rows_hidden64", rows(index, 64));
  const Tensor thw = expected.view("latent_pos_embed.thw_hidden2048");
  const Tensor factors = ints({table.side * table.side, table.side, 1});
  trace.record("latent_pos_embed.thw_hidden2048", thw);
  trace.record("latent_pos_embed.rows_hidden2048", rows((thw * factors).sum(1), 2048));
  const Tensor frequencies = rope_frequencies(128, 1e6);
  trace.record("rotary.inv_freq_hd128_theta1e6", frequencies);
  trace.record("rotary.inv_freq_hd128_theta1e6_bf16_rounded",
               frequencies.to(at::kBFloat16).to(at::kFloat));
  const Tensor times = expected.view("timestep_features.t");
  std::vector<Tensor> features;
  for (std::int64_t i = 0; i < times.size(0); ++i)
    features.push_back(timestep_embedding(times[i].item<float>(), 256));
  trace.record("timestep_features.t", times);
  trace.record("timestep_features.256", at::stack(features));
}

void replay_positions(const RecordedCase& recorded, const RunConfig& config, TraceSink& trace) {
  const auto tokenizer = load_byte_level_bpe(LanceFolders::of(config.model, LanceTask::t2i).llm);
  const SafetensorsFile expected = SafetensorsFile::open(recorded.folder / "expected.safetensors");
  for (const Json& entry : recorded_field<Json>(recorded, "/layouts"))
    replay_layout(recorded, entry, *tokenizer, expected, trace);
  replay_tables(expected, trace);
}

}  // namespace

bool replay_lance_inputs(const std::string& kind, const RecordedCase& recorded,
                         const RunConfig& config, TraceSink& trace) {
  if (kind == "preprocess") {
    replay_preprocess(recorded, trace);
  } else if (kind == "positions") {
    replay_positions(recorded, config, trace);
  } else {
    return false;
  }
  return true;
}

}  // namespace diptych
