#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "lib/verify/trace_compare.h"
#include "lib/verify/trace_names.h"
#include "tests/verify/goldens.h"

namespace {

using namespace diptych;
using nlohmann::json;

TEST_CASE("the groups of case 01") {
  const auto tolerances = Tolerances::from_case(test::own_case("01_t2i_square"));
  const std::pair<const char*, double> table[] = {
      {"prefill.00.cond.text.packed_text_ids", 0},
      {"prefill.00.cond.text.embeds", 2e-5},
      {"prefill.00.cond.text.layer02.hidden", 2e-5},
      {"prefill.00.cond.text.final_norm", 2e-5},
      {"kv.cond.len", 0},
      {"kv.img_uncond.layer01.value", 2e-5},
      {"gen.init_noise", 2e-5},
      {"gen.text_uncond.position_ids", 0},
      {"step000.t", 3e-5},
      {"step000.time_embed", 3e-5},
      {"step000.vae2llm", 3e-5},
      {"step000.cond.embeds", 3e-5},
      {"step006.cond.layer00.hidden", 3e-5},
      {"step000.text_uncond.final_norm", 3e-5},
      {"step000.v_cond", 2e-5},
      {"step003.v_text_uncond", 2e-5},
      {"step003.v_guided", 2e-5},
      {"step006.latent", 2e-5},
      {"vae.decode_input", 2e-5},
      {"vae.decoded", 2e-5},
      {"image.uint8", 1},
      {"step000.v_img_uncond", 3e-5},  // no group of its own: suggested_overall
      {"anything.else", 3e-5},
  };
  for (const auto& [name, expected] : table) {
    CAPTURE(name);
    CHECK(tolerances.for_name(name) == expected);
  }
  CHECK_FALSE(tolerances.image_mean_abs().has_value());
}

TEST_CASE("the groups of the bf16 case 12") {
  const auto tolerances = Tolerances::from_case(test::own_case("12_t2i_square_bf16"));
  const std::pair<const char*, double> table[] = {
      {"gen.init_noise", 0},
      {"kv.cond.layer00.key", 0.066},
      {"prefill.00.cond.text.embeds", 0.098},
      {"step000.cond.layer00.hidden", 0.13},
      {"step000.latent", 0.044},
      {"step000.v_guided", 0.1},
      {"vae.decode_input", 0.044},
      {"vae.decoded", 0.031},
      {"anything.else", 0.13},  // no suggested_overall: the largest
      {"image.uint8", 4},       // 0.031 of the decoder's -1 to 1, in levels; and by its mean
      {"kv.cond.len", 0},
  };
  for (const auto& [name, expected] : table) {
    CAPTURE(name);
    CHECK(tolerances.for_name(name) == expected);
  }
  CHECK(tolerances.image_mean_abs() == 0.67);
}

TEST_CASE("a picture judged by its mean, without a tolerance of the decoder, may differ anywhere") {
  const auto tolerances = Tolerances::from_case({{"tolerance", {{"image_uint8_mean_abs", 0.5}}}});
  CHECK(tolerances.for_name("image.uint8") == 255);
  CHECK(tolerances.image_mean_abs() == 0.5);
}

TEST_CASE("groups of cases with pictures in, text out and batches") {
  const json block = {{"suggested",
                       {{"prefill.vae.*", 6e-5},
                        {"prefill.vit.*", 5e-5},
                        {"prefill.hidden", 2e-5},
                        {"decode.logits", 4e-5},
                        {"kv", 1e-5},
                        {"result", 7e-5},
                        {"vae.internal", 3e-4},
                        {"vae.decoded", 8e-5}}},
                      {"suggested_overall", 1.0}};
  const auto tolerances = Tolerances::from_case({{"tolerance", block}});
  const std::pair<const char*, double> table[] = {
      {"prefill.00.cond.vae.vae.moments", 6e-5},
      {"prefill.00.cond.vae.vae2llm", 2e-5},
      {"prefill.00.cond.vae.time_embed", 2e-5},
      {"prefill.00.cond.vit.packed_vit_tokens", 5e-5},
      {"prefill.01.cond.vit.vit.layer00.hidden", 5e-5},
      {"prefill.01.cond.vit.layer00.hidden", 2e-5},
      {"decode.logits", 4e-5},
      {"decode.margin", 4e-5},
      {"decode.kv.layer00.key", 1e-5},
      {"decode.token_ids", 0},
      {"result.1.latent", 7e-5},
      {"0.encoder.mid.attn_1", 3e-4},
      {"0.moments", 3e-4},
      {"0.decoded_mean", 8e-5},
      {"z_random.decoded", 8e-5},
      {"vae.decoded.1", 8e-5},
  };
  for (const auto& [name, expected] : table) {
    CAPTURE(name);
    CHECK(tolerances.for_name(name) == expected);
  }
}

TEST_CASE("every group that a case suggests is one that its tensors use") {
  for (const auto& folder : test::bagel_cases()) {
    if (!std::filesystem::exists(folder / "expected.safetensors")) continue;
    const json description = test::case_json(folder);
    if (!description.contains("tolerance") || !description["tolerance"].contains("suggested"))
      continue;
    CAPTURE(folder.string());
    std::set<std::string> used;
    for (const auto& [name, tensor] : read_trace(folder / "expected.safetensors")) {
      CAPTURE(name);
      CHECK(is_integer_name(name) == (tensor.scalar_type() == at::kLong));
      CHECK(is_image_name(name) == (tensor.scalar_type() == at::kByte));
      if (is_integer_name(name) || is_image_name(name)) continue;
      const auto groups = tolerance_groups(name);
      const auto found = std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
        return description["tolerance"]["suggested"].contains(group);
      });
      CHECK(found != groups.end());  // no name of a case needs the fallback
      if (found != groups.end()) used.insert(*found);
    }
    for (const auto& [group, value] : description["tolerance"]["suggested"].items()) {
      CAPTURE(group);
      CHECK(used.contains(group));
    }
  }
}

TEST_CASE("other forms of the tolerance block") {
  const auto pixels =
      Tolerances::from_case({{"tolerance", {{"uint8_max_abs", 0}, {"float_max_abs", 1.2e-7}}}});
  CHECK(pixels.for_name("tiny.0.vae_tensor") == 1.2e-7);
  CHECK(pixels.for_name("image.uint8") == 0);
  CHECK(Tolerances::from_case(json::object()).for_name("step000.latent") == 0);
  const json bad[] = {json::array(),
                      {{"tolerance", 1}},
                      {{"tolerance", {{"suggested", 1}}}},
                      {{"tolerance", {{"suggested", {{"kv", "small"}}}}}},
                      {{"tolerance", {{"suggested", {{"kv", -1}}}}}},
                      {{"tolerance", {{"suggested_overall", nullptr}}}}};
  for (const json& description : bad)
    CHECK_THROWS_AS(Tolerances::from_case(description), InputError);
}

TEST_CASE("globs take precedence, the last one first") {
  auto tolerances = Tolerances::uniform(1e-3);
  CHECK(tolerances.for_name("step000.latent") == 1e-3);
  CHECK(tolerances.for_name("image.uint8") == 1);
  CHECK(Tolerances::uniform(2).for_name("image.uint8") == 2);
  CHECK(Tolerances::uniform(0).for_name("image.uint8") == 0);
  tolerances.set("step*", 1e-2);
  tolerances.set("*.latent", 5);
  tolerances.set("image*", 9);
  CHECK(tolerances.for_name("step000.latent") == 5);
  CHECK(tolerances.for_name("step000.v_cond") == 1e-2);
  CHECK(tolerances.for_name("vae.decoded") == 1e-3);
  CHECK(tolerances.for_name("image.uint8") == 9);
}

}  // namespace
