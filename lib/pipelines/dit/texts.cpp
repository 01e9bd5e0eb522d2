#include "lib/pipelines/dit/texts.h"

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/base/messages.h"
#include "lib/session/memory/plan.h"

namespace diptych {
namespace {

constexpr std::size_t kAhead = 256;  // texts that one loading of the encoder serves

// Without a tokenizer: the bytes of the text behind the ids of marks, and the end mark.
TokenIds byte_ids(std::string_view text, std::int64_t vocab) {
  constexpr std::int64_t kFirst = 3;
  TokenIds ids;
  for (const char c : text.substr(0, DitTexts::kMostIds - 1))
    ids.push_back(std::min<std::int64_t>(kFirst + static_cast<unsigned char>(c), vocab - 1));
  ids.push_back(1);
  return ids;
}

}  // namespace

SharedKeys preferred_shared_keys(const Runtime& runtime, std::int64_t head_dim) {
  return preferred_shared_keys(runtime.paint_attention.of(AttentionRole::self),
                               {runtime.device, runtime.dtype, head_dim});
}

DitTexts::DitTexts(const std::filesystem::path& folder, Umt5Config config, const Weights& weights,
                   const Runtime& runtime)
    : runtime_(runtime), config_(std::move(config)), weights_(weights) {
  if (folder.empty()) return;
  tokenizer_ = UnigramTokenizer::load(folder / "tokenizer");
  if (tokenizer_->size() > config_.vocab_size) {
    throw InputError("{}: has ids up to {}, expected fewer than the vocab_size {} of {}",
                     (folder / "tokenizer" / "tokenizer.json").string(), tokenizer_->size() - 1,
                     config_.vocab_size, (folder / "text_encoder" / "config.json").string());
  }
}

TokenIds DitTexts::tokenize(std::string_view text, std::string_view setting, Log& log) const {
  if (!tokenizer_) return byte_ids(text, config_.vocab_size);
  TokenIds ids = about(Setting::of(setting), [&] { return tokenizer_->encode(text); });
  const auto count = static_cast<std::int64_t>(ids.size());
  if (count <= kMostIds) return ids;
  log.warning_once(fmt::format("{}: \"{}\" has {} tokens, of which the model reads the first {}",
                               Setting::of(setting).label, printable(shortened(text)), count,
                               kMostIds));
  return tokenizer_->truncate(ids, kMostIds);
}

std::int64_t DitTexts::bytes(const std::vector<TokenIds>& texts) const {
  std::int64_t most = 0;
  for (const TokenIds& ids : texts) {
    if (!kept_.contains(ids)) most = std::max(most, static_cast<std::int64_t>(ids.size()));
  }
  if (most == 0) return 0;
  return umt5_weight_bytes(config_, runtime_.dtype) +
         umt5_encode_bytes(config_, most, runtime_.dtype);
}

void DitTexts::expect(const std::vector<TokenIds>& texts) {
  expected_.insert(expected_.end(), texts.begin(), texts.end());
}

// Of these texts, and of those that are expected, what is to be encoded now. Lets go of others
// where many are kept.
std::vector<TokenIds> DitTexts::missing(const std::vector<TokenIds>& texts) {
  std::vector<TokenIds> wanted;
  const auto add = [&](const TokenIds& ids) {
    if (!kept_.contains(ids) && std::ranges::find(wanted, ids) == wanted.end())
      wanted.push_back(ids);
  };
  for (const TokenIds& ids : texts) add(ids);
  if (wanted.empty()) return wanted;
  if (kept_.size() > kAhead) {
    std::erase_if(kept_, [&](const auto& kept) {
      return std::ranges::find(texts, kept.first) == texts.end();
    });
  }
  while (!expected_.empty() && wanted.size() < kAhead) {
    add(expected_.front());
    expected_.pop_front();
  }
  return wanted;
}

Weights DitTexts::placed(std::int64_t needed, std::optional<std::int64_t> room, Log& log) const {
  if (!room || needed <= *room) return weights_;
  log.warning_once(fmt::format(
      "the text encoder runs on the CPU: it takes {:.1f} GiB of the device, {:.1f} are free",
      to_gib(needed), to_gib(std::max<std::int64_t>(*room, 0))));
  return weights_.on(at::kCPU);
}

void DitTexts::encode(const std::vector<TokenIds>& texts, std::optional<std::int64_t> room,
                      Log& log, Progress& progress) {
  const std::vector<TokenIds> wanted = missing(texts);
  if (wanted.empty()) return;
  const Weights weights = placed(bytes(wanted), room, log);
  progress.begin("text", static_cast<std::int64_t>(wanted.size()) + 1);
  Weights::ReadAhead reading(weights);
  const Umt5 encoder = Umt5::load(weights, config_);
  reading.finish();
  progress.update(1);
  const bool on_device = weights.options().device() == runtime_.device;
  const Kernels kernels = on_device ? runtime_.kernels : Kernels(KernelPolicy::automatic);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    check_interrupted();
    kept_[wanted[i]] = encoder.forward(wanted[i], kernels).to(at::kCPU);
    progress.update(static_cast<std::int64_t>(i) + 2);
  }
  progress.end();
}

}  // namespace diptych
