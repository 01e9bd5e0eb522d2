#include "lib/pipelines/dit/replay_models.h"

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/models/umt5/umt5.h"
#include "lib/models/wan_vae/trace.h"
#include "lib/models/wan_vae/wan_vae.h"
#include "lib/pipelines/dit/texts.h"
#include "lib/pipelines/recorded_values.h"
#include "lib/session/make_runtime.h"
#include "lib/tensor/noise.h"
#include "lib/tensor/safetensors.h"
#include "lib/text/prompt_cleaning.h"
#include "lib/text/unigram.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

// A device opens on a thread that writes to the log, which therefore must stay.
struct QuietRuntime {
  explicit QuietRuntime(const RunConfig& config) : runtime(make_runtime(config, log)) {}
  Log log{LogLevel::quiet};
  Runtime runtime;
};

// The prompts of a case through the tokenizer and the encoder.
class TextReplay {
 public:
  TextReplay(const RecordedCase& recorded, const RunConfig& config, TraceSink& trace)
      : recorded_(recorded),
        quiet_(config),
        trace_(trace),
        expected_(SafetensorsFile::open(recorded.folder / "expected.safetensors")),
        tokenizer_(UnigramTokenizer::load(config.model / "tokenizer")) {
    const fs::path folder = config.model / "text_encoder";
    model_ = Umt5::load(Weights::open(folder, runtime_.device, at::kFloat),
                        Umt5Config::load(folder / "config.json"));
    length_ = recorded_field<std::int64_t>(recorded, "/parameters/max_sequence_length");
    if (length_ < 1 || length_ > DitTexts::kMostIds)
      throw InputError("{}: /parameters/max_sequence_length: found {}, expected 1 to {}",
                       (recorded.folder / "case.json").string(), length_, DitTexts::kMostIds);
  }

  void run(PromptCleaning cleaning) {
    const auto count = std::ssize(recorded_field<std::vector<std::string>>(recorded_, "/prompts"));
    Tensor ids = at::zeros({count, length_}, at::kLong), mask = at::zeros_like(ids);
    Tensor lengths = at::zeros({count}, at::kLong);
    Tensor embeds = at::zeros({count, length_, model_.config.d_model}, at::kFloat);
    for (std::int64_t i = 0; i < count; ++i) {
      const TokenIds tokens =
          tokenizer_.truncate(tokenizer_.encode(text(i, cleaning)), as_size(length_));
      const auto n = std::ssize(tokens);
      ids[i].narrow(0, 0, n).copy_(at::tensor(tokens, at::kLong));
      mask[i].narrow(0, 0, n).fill_(1);
      lengths[i].fill_(n);
      embeds[i].narrow(0, 0, n).copy_(model_.forward(tokens, runtime_.kernels, observer(i)));
    }
    trace_.record("tokens.input_ids", ids);
    trace_.record("tokens.attention_mask", mask);
    trace_.record("tokens.seq_len", lengths);
    trace_.record("prompt_embeds", embeds);
    constexpr std::int64_t kFarthest = 600;
    trace_.record("encoder.relative_bucket.relpos_minus600_to_600",
                  umt5_buckets(at::arange(-kFarthest, kFarthest + 1, at::kLong), model_.config));
    trace_.leave_out("encoder.last_hidden_state.head64");
  }

 private:
  static constexpr std::int64_t kShownBiases = 24;

  static std::size_t as_size(std::int64_t value) { return static_cast<std::size_t>(value); }

  std::string text(std::int64_t i, PromptCleaning cleaning) const {
    const auto raw = recorded_field<std::string>(recorded_, fmt::format("/prompts/{}", i));
    std::string found = clean_prompt(raw, cleaning);
    const std::string at = fmt::format("/cleaned_with_ftfy/{}", i);
    if (cleaning != PromptCleaning::ftfy || !has_field(recorded_, at)) return found;
    const auto expected = recorded_field<std::string>(recorded_, at);
    if (found != expected)
      throw CheckFailed(fmt::format("prompt {}: {} becomes {}, expected {}", i, shown_json(raw),
                                    shown_json(found), shown_json(expected)));
    return found;
  }

  // Biases do not depend on the prompt: those of the first one that is long enough are shown.
  // Recorded hidden states go on into the padding, whose rows are not computed here.
  Umt5Observer observer(std::int64_t prompt) {
    return [this, prompt](std::string_view name, const Tensor& value) {
      if (!name.ends_with(".position_bias")) {
        const std::string shown = fmt::format("encoder.prompt{}.{}", prompt, name);
        if (recorded_rows(shown) > value.size(0)) return trace_.leave_out(shown);
        return trace_.record(shown, value);
      }
      const std::string shown = fmt::format("encoder.{0}_{1}x{1}", name, kShownBiases);
      if (value.size(1) < kShownBiases || !biases_.insert(shown).second) return;
      trace_.record(shown, value.narrow(1, 0, kShownBiases).narrow(2, 0, kShownBiases));
    };
  }
  std::int64_t recorded_rows(const std::string& name) const {
    return expected_.entries().contains(name) ? expected_.view(name).size(0) : 0;
  }

  const RecordedCase& recorded_;
  QuietRuntime quiet_;
  const Runtime& runtime_ = quiet_.runtime;
  TraceSink& trace_;
  SafetensorsFile expected_;
  std::set<std::string> biases_;  // shown so far
  UnigramTokenizer tokenizer_;
  Umt5 model_;
  std::int64_t length_ = 0;
};

class VaeReplay {
 public:
  VaeReplay(const RecordedCase& recorded, const RunConfig& config, TraceSink& trace)
      : recorded_(recorded), quiet_(config), trace_(trace), tiling_(tiling()) {
    const fs::path folder = config.model / "vae";
    vae_ = WanVae::load(Weights::open(folder, runtime_.device, at::kFloat),
                        WanVaeConfig::load(folder / "config.json"), {runtime_.kernels.policy});
  }

  // video [3, T, H, W]
  void encode(const Tensor& video) const {
    const WanVaeMoments moments =
        tiling_ ? vae_.encode(video, *tiling_) : vae_.encode(video, wan_vae_trace_to(trace_));
    const Tensor log_var = moments.log_var.clamp(-30, 20);
    const auto record = [&](const char* name, const Tensor& value) {
      trace_.record(name, value.unsqueeze(0));
    };
    record("encode.mean", moments.mean);
    record("encode.moments", at::cat({moments.mean, moments.log_var}));
    record("encode.logvar_clamped", log_var);
    record("encode.std", (0.5 * log_var).exp());
    record("encode.normalized_mode", moments.mu);
    at::Generator generator = cpu_generator(recorded_field<std::uint64_t>(recorded_, "/seed") + 1);
    const Tensor eps = randn(moments.mean.sizes(), generator);
    record("encode.sample_seed_plus_1", moments.sample(eps.to(runtime_.device)));
    const Tensor first = video.narrow(1, 0, 1);
    record("encode.single_frame_mean",
           (tiling_ ? vae_.encode(first, *tiling_) : vae_.encode(first)).mean);
  }

  // latents [z, t, h, w], not normalised
  void decode(const Tensor& latents) const {
    WanVae plain = vae_;
    plain.mean = at::zeros_like(vae_.mean);
    plain.inverse_std = at::ones_like(vae_.inverse_std);
    const Tensor latent = latents.permute({1, 2, 3, 0});
    WanVaeDecoder decoder = tiling_ ? WanVaeDecoder(plain, latent, *tiling_)
                                    : WanVaeDecoder(plain, latent, wan_vae_trace_to(trace_));
    std::vector<Tensor> frames;
    while (decoder.has_next()) frames.push_back(decoder.next());
    trace_.record("decode.video", at::cat(frames, 1).unsqueeze(0));
  }

 private:
  std::optional<WanVaeTiling> tiling() const {
    const std::string at = "/parameters/tiling";
    if (!has_field(recorded_, at) ||
        recorded_.description.at(nlohmann::json::json_pointer(at)).is_null())
      return std::nullopt;
    const auto pixels = [&](const char* name) {
      return recorded_field<std::int64_t>(recorded_, fmt::format("{}/{}", at, name));
    };
    return WanVaeTiling{pixels("tile_sample_min_height"), pixels("tile_sample_min_width"),
                        pixels("tile_sample_stride_height"), pixels("tile_sample_stride_width")};
  }

  const RecordedCase& recorded_;
  QuietRuntime quiet_;
  const Runtime& runtime_ = quiet_.runtime;
  TraceSink& trace_;
  std::optional<WanVaeTiling> tiling_;
  WanVae vae_;
};

}  // namespace

void replay_umt5_texts(const RecordedCase& recorded, const RunConfig& config, TraceSink& trace) {
  TextReplay(recorded, config, trace).run(PromptCleaning::ftfy);
}

void replay_t5_texts(const RecordedCase& recorded, const RunConfig& config, TraceSink& trace) {
  TextReplay(recorded, config, trace).run(PromptCleaning::none);
}

void replay_dit_vae(const RecordedCase& recorded, const RunConfig& config, TraceSink& trace) {
  const VaeReplay replay(recorded, config, trace);
  const SafetensorsFile inputs = SafetensorsFile::open(recorded.folder / "inputs.safetensors");
  replay.encode(inputs.view("video")[0]);
  replay.decode(inputs.view("latents")[0]);
}

}  // namespace diptych
