#include "lib/verify/trace_names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <tuple>
#include <utility>

namespace diptych {
namespace {

std::vector<std::string_view> split(std::string_view name) {
  std::vector<std::string_view> parts;
  for (std::size_t dot; (dot = name.find('.')) != std::string_view::npos;) {
    parts.push_back(name.substr(0, dot));
    name.remove_prefix(dot + 1);
  }
  parts.push_back(name);
  return parts;
}

// "layer07" -> {"layer", 7}; "v_cond" -> {"v_cond", -1}; "03" -> {"", 3}.
std::pair<std::string_view, std::int64_t> split_number(std::string_view part) {
  const auto last = part.find_last_not_of("0123456789");
  const std::size_t word = last == std::string_view::npos ? 0 : last + 1;
  std::int64_t number = -1;
  std::from_chars(part.data() + word, part.data() + part.size(), number);
  return {part.substr(0, word), number};
}

using Ranks = std::pair<std::string_view, int>;

// The first part of a name: the stages of a run. A number alone is a picture of a VAE case.
constexpr std::array<Ranks, 10> kStages = {{{"", 0},
                                            {"prefill", 1},
                                            {"decode", 2},
                                            {"kv", 3},
                                            {"gen", 4},
                                            {"step", 5},
                                            {"result", 6},
                                            {"vae", 7},
                                            {"z_random", 8},
                                            {"image", 9}}};
constexpr int kUnknownStage = 10;

// The other parts: what happens within one stage. Unlisted ones (ids, lengths, positions, and the
// numbers of layers and calls) come first.
constexpr std::array<Ranks, 40> kWithin = {{{"t", 1},
                                            {"init_noise", 2},
                                            {"packed_vit_tokens", 3},
                                            {"image", 4},
                                            {"conv_in", 5},
                                            {"embed", 6},
                                            {"encoder", 7},
                                            {"down", 8},
                                            {"block_1", 9},
                                            {"attn_1", 10},
                                            {"block_2", 11},
                                            {"mid", 12},
                                            {"up", 13},
                                            {"moments", 14},
                                            {"noise", 15},
                                            {"latent_mean", 16},
                                            {"latent_sampled", 17},
                                            {"vit", 18},
                                            {"vae", 19},
                                            {"decode_input", 20},
                                            {"decoder", 21},
                                            {"decoded_mean", 22},
                                            {"decoded", 23},
                                            {"time_embed", 24},
                                            {"vae2llm", 25},
                                            {"cond", 26},
                                            {"text_uncond", 27},
                                            {"img_uncond", 28},
                                            {"embeds", 29},
                                            {"layer", 30},
                                            {"post_layernorm", 31},
                                            {"connector", 32},
                                            {"final_norm", 33},
                                            {"logits", 34},
                                            {"margin", 35},
                                            {"v_cond", 36},
                                            {"v_text_uncond", 37},
                                            {"v_img_uncond", 38},
                                            {"v_guided", 39},
                                            {"latent", 40}}};

template <std::size_t N>
int rank_in(const std::array<Ranks, N>& table, std::string_view word, int otherwise) {
  const auto found = std::ranges::find(table, word, &Ranks::first);
  return found == table.end() ? otherwise : found->second;
}

// Where one part of a name stands among its siblings; `parent`: the part before it, "" for the
// first.
std::tuple<int, std::int64_t, std::string_view> place(std::string_view part,
                                                      std::string_view parent, bool first) {
  const auto [word, number] = split_number(part);
  if (first) return {rank_in(kStages, word, kUnknownStage), number, word};
  if (const int whole = rank_in(kWithin, part, 0); whole > 0) return {whole, 0, part};
  // A FLUX decoder's "up" levels run from the highest number down.
  return {rank_in(kWithin, word, 0), parent == "up" ? -number : number, word};
}

bool ends_with_any(std::string_view text, std::initializer_list<std::string_view> endings) {
  return std::ranges::any_of(endings, [&](auto ending) { return text.ends_with(ending); });
}

}  // namespace

bool computed_before(std::string_view a, std::string_view b) {
  const auto left = split(a), right = split(b);
  std::string_view parent;
  for (std::size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
    const auto x = place(left[i], parent, i == 0), y = place(right[i], parent, i == 0);
    if (x != y) return x < y;
    parent = left[i];
  }
  return std::pair(left.size(), a) < std::pair(right.size(), b);
}

bool is_integer_name(std::string_view name) {
  return ends_with_any(name, {"ids", "indexes", "len", "lens", "timesteps", "start_position",
                              "logits_steps", "tokens.offsets", "size_table"});
}

bool is_image_name(std::string_view name) {
  return (name.starts_with("image.") && name.ends_with("uint8")) || name.ends_with(".image_uint8");
}

std::vector<std::string> tolerance_groups(std::string_view name) {
  const auto parts = split(name);
  const auto [stage, number] = split_number(parts[0]);
  const std::string_view last = parts.back();
  if (stage == "prefill") {
    if (name.find(".vae.vae.") != std::string_view::npos)
      return {"prefill.vae.*", "prefill.hidden"};
    if (name.find(".vit.vit.") != std::string_view::npos || last == "packed_vit_tokens") {
      return {"prefill.vit.*", "prefill.hidden"};
    }
    return {"prefill.hidden"};
  }
  if (stage == "kv" || name.starts_with("decode.kv.")) return {"kv"};
  if (stage == "decode") return {"decode.logits"};
  if (stage == "gen") return {"gen"};
  if (stage == "step") {
    const bool result = parts.size() == 2 && (last == "latent" || last.starts_with("v_"));
    if (result) return {"step*." + std::string(last)};
    return {"step*.hidden"};
  }
  if (stage == "result") return {"result", "step*.latent"};
  if (stage == "vae" || stage == "z_random" || (stage.empty() && number >= 0)) {
    if (name.find(".decoded") != std::string_view::npos) return {"vae.decoded", "vae"};
    return stage == "vae" ? std::vector<std::string>{"vae"}
                          : std::vector<std::string>{"vae.internal"};
  }
  return {};
}

}  // namespace diptych
