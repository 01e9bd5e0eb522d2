#include "lib/verify/trace_names.h"

#include <algorithm>
#include <random>

#include <doctest/doctest.h>

namespace {

using namespace diptych;

// In order of computation.
const std::vector<std::string> kRun = {
    "prefill.00.cond.vae.packed_seqlens",
    "prefill.00.cond.vae.vae.image",
    "prefill.00.cond.vae.vae.moments",
    "prefill.00.cond.vae.vae.noise",
    "prefill.00.cond.vae.vae.latent",
    "prefill.00.cond.vae.time_embed",
    "prefill.00.cond.vae.vae2llm",
    "prefill.00.cond.vae.embeds",
    "prefill.00.cond.vae.layer00.hidden",
    "prefill.00.cond.vae.layer02.hidden",
    "prefill.00.cond.vae.layer10.hidden",
    "prefill.00.cond.vae.final_norm",
    "prefill.01.cond.vit.position_ids",
    "prefill.01.cond.vit.packed_vit_tokens",
    "prefill.01.cond.vit.vit.embed",
    "prefill.01.cond.vit.vit.layer00.hidden",
    "prefill.01.cond.vit.vit.post_layernorm",
    "prefill.01.cond.vit.vit.connector",
    "prefill.01.cond.vit.embeds",
    "prefill.01.cond.vit.layer00.hidden",
    "prefill.02.img_uncond.text.packed_text_ids",
    "prefill.02.img_uncond.text.embeds",
    "prefill.10.cond.text.embeds",
    "decode.kv.layer00.key",
    "decode.token_ids",
    "decode.logits",
    "decode.margin",
    "kv.cond.len",
    "kv.cond.layer00.key",
    "kv.cond.layer00.value",
    "kv.cond.layer01.key",
    "kv.text_uncond.len",
    "kv.img_uncond.layer00.key",
    "gen.packed_vae_position_ids",
    "gen.init_noise",
    "step000.t",
    "step000.time_embed",
    "step000.vae2llm",
    "step000.cond.position_ids",
    "step000.cond.embeds",
    "step000.cond.layer00.hidden",
    "step000.cond.final_norm",
    "step000.text_uncond.layer00.hidden",
    "step000.img_uncond.final_norm",
    "step000.v_cond",
    "step000.v_text_uncond",
    "step000.v_img_uncond",
    "step000.v_guided",
    "step000.latent",
    "step001.t",
    "step001.latent",
    "step010.v_cond",
    "result.0.latent",
    "vae.decode_input",
    "vae.decoded",
    "image.uint8",
    "something.else.02",
    "something.else.10",
};

const std::vector<std::string> kVae = {
    "0.image",
    "0.encoder.down.0.downsample",
    "0.encoder.down.2.downsample",
    "0.encoder.down.3.block.0",
    "0.encoder.mid.block_1",
    "0.encoder.mid.attn_1",
    "0.encoder.mid.block_2",
    "0.moments",
    "0.noise",
    "0.latent_mean",
    "0.latent_sampled",
    "0.decoder.conv_in",
    "0.decoder.mid.attn_1",
    "0.decoder.mid.block_2",
    "0.decoder.up.3.upsample",
    "0.decoder.up.2.upsample",
    "0.decoded",
    "1.image",
    "z_random.decoded",
};

TEST_CASE("names sort in order of computation") {
  std::mt19937 random(7);
  for (const auto& expected : {kRun, kVae}) {
    auto names = expected;
    std::shuffle(names.begin(), names.end(), random);
    std::sort(names.begin(), names.end(), computed_before);
    CHECK(names == expected);
  }
}

TEST_CASE("the order is a strict weak order on any names") {
  auto names = kRun;
  names.insert(names.end(), kVae.begin(), kVae.end());
  for (const char* odd :
       {"", ".", "..", "step", "step5", "step05", "99999999999999999999", "layer.", "up.1"})
    names.emplace_back(odd);
  for (const auto& a : names) {
    CHECK_FALSE(computed_before(a, a));
    for (const auto& b : names) {
      if (a != b) CHECK(computed_before(a, b) != computed_before(b, a));
    }
  }
}

TEST_CASE("whole numbers and pictures by name") {
  for (const char* name :
       {"kv.cond.len", "prefill.00.cond.text.key_values_lens",
        "prefill.00.cond.text.packed_text_ids", "prefill.00.cond.vae.packed_timesteps",
        "gen.packed_indexes", "decode.start_position", "decode.start_kv_len", "decode.logits_steps",
        "prefill.00.cond.vit.vit_token_seqlens"}) {
    CAPTURE(name);
    CHECK(is_integer_name(name));
  }
  for (const char* name : {"step000.t", "decode.logits", "step000.latent",
                           "prefill.00.cond.vit.packed_vit_tokens", "gen.init_noise"}) {
    CAPTURE(name);
    CHECK_FALSE(is_integer_name(name));
  }
  CHECK(is_image_name("image.uint8"));
  CHECK(is_image_name("image.1.uint8"));
  CHECK(is_image_name("0.image_uint8"));
  CHECK_FALSE(is_image_name("0.image"));
  CHECK_FALSE(is_image_name("prefill.00.cond.vae.vae.image"));
}

}  // namespace
