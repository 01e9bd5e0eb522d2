#include <fstream>
#include <sstream>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "lib/models/wan_vae/layout.h"
#include "lib/models/wan_vae/memory.h"
#include "lib/models/wan_vae/trace.h"
#include "lib/tensor/safetensors.h"
#include "lib/tensor/tensor_file.h"
#include "lib/verify/trace_compare.h"
#include "tests/models/wan_vae_cases.h"
#include "tests/support/folder.h"
#include "tests/support/peak_bytes.h"
#include "tests/support/skip.h"
#include "tests/verify/goldens.h"

namespace diptych {
namespace {

namespace cases = wan_vae_cases;
namespace fs = std::filesystem;
using Json = nlohmann::json;

// Where the full set of Wan's recorded data is; empty where it is not.
fs::path full_goldens() {
  const fs::path folder = test::goldens_of("wan").back();
  return fs::exists(folder / "cases/vae_wan21") ? folder : fs::path();
}

WanVae load_folder(const fs::path& folder) {
  return WanVae::load(Weights::open(folder, at::kCPU, at::kFloat),
                      WanVaeConfig::load(folder / "config.json"));
}

std::optional<WanVaeTiling> tiling_of(const Json& recorded) {
  const Json& tiling = recorded.at("parameters").at("tiling");
  if (tiling.is_null()) return {};
  return WanVaeTiling{tiling.at("tile_sample_min_height"), tiling.at("tile_sample_min_width"),
                      tiling.at("tile_sample_stride_height"),
                      tiling.at("tile_sample_stride_width")};
}

// What a case records of the encoder.
void trace_encode(const WanVae& vae, const Tensor& video, const Json& recorded, TraceSink& trace) {
  const std::optional<WanVaeTiling> tiling = tiling_of(recorded);
  const std::uint64_t seed = recorded.at("seed");
  const WanVaeMoments moments =
      tiling ? vae.encode(video, *tiling) : vae.encode(video, wan_vae_trace_to(trace));
  const Tensor first = video.narrow(1, 0, 1);
  const auto record = [&](const char* name, const Tensor& value) {
    trace.record(name, value.unsqueeze(0));
  };
  record("encode.mean", moments.mean);
  record("encode.moments", at::cat({moments.mean, moments.log_var}));
  record("encode.logvar_clamped", moments.log_var.clamp(-30, 20));
  record("encode.std", (0.5 * moments.log_var.clamp(-30, 20)).exp());
  record("encode.normalized_mode", moments.mu);
  record("encode.sample_seed_plus_1", moments.sample(cases::draw(moments.mean.sizes(), seed + 1)));
  record("encode.single_frame_mean",
         (tiling ? vae.encode(first, *tiling) : vae.encode(first)).mean);
  CHECK(vae.normalise(moments.mean).allclose(moments.mu));
  CHECK(vae.denormalise(moments.mu).allclose(moments.mean, 1e-5, 1e-6));
}

// The recorded latents are not normalised.
WanVae without_scale(WanVae vae) {
  vae.mean = at::zeros_like(vae.mean);
  vae.inverse_std = at::ones_like(vae.inverse_std);
  return vae;
}

void trace_decode(const WanVae& scaled, const Tensor& latents, const Json& recorded,
                  TraceSink& trace) {
  const WanVae vae = without_scale(scaled);
  const Tensor latent = latents.permute({1, 2, 3, 0});
  const std::optional<WanVaeTiling> tiling = tiling_of(recorded);
  WanVaeDecoder decoder = tiling ? WanVaeDecoder(vae, latent, *tiling)
                                 : WanVaeDecoder(vae, latent, wan_vae_trace_to(trace));
  std::vector<Tensor> frames;
  while (decoder.has_next()) frames.push_back(decoder.next());
  trace.record("decode.video", at::cat(frames, 1).unsqueeze(0));
}

void check_case(const fs::path& goldens, const char* name) {
  CAPTURE(name);
  const fs::path folder = goldens / "cases" / name;
  const Json recorded = test::case_json(folder);
  const WanVae vae = load_folder(goldens / recorded.at("checkpoint").get<std::string>());
  const NamedTensors inputs = read_trace(folder / "inputs.safetensors");
  TraceSink trace;
  trace_encode(vae, inputs.at("video")[0], recorded, trace);
  trace_decode(vae, inputs.at("latents")[0], recorded, trace);
  Tolerances tolerances = Tolerances::uniform(0);
  for (const char* group : {"encode", "decode"})
    tolerances.set(std::string(group) + ".*", recorded.at("tolerance").at(group));
  // The decoder's maps reach 36, where four steps of a float32 are the tolerance of its frames.
  tolerances.set_relative_norm({"decode.chunk*", 2e-6});
  const auto& list = trace.tensors();
  const auto comparison =
      compare_traces(NamedTensors(list.begin(), list.end()),
                     read_trace(folder / "expected.safetensors"), tolerances, TraceNames{});
  const TensorComparison* first = comparison.first_divergence();
  INFO("first divergence: ", first != nullptr ? describe(*first) : std::string("none"));
  CHECK(comparison.pass());
}

fs::path own_goldens() {
  return test::goldens_of("wan").front() / "vae";
}

// The recorded decoder beside an encoder of zeros, in the naming that `config` has.
std::vector<std::pair<std::string, Tensor>> own_tensors(const WanVaeConfig& config) {
  const NamedTensors recorded = read_trace(own_goldens() / "decoder.safetensors");
  WanVaeConfig as_recorded = config;
  as_recorded.naming = WanVaeNaming::diffusers;
  const auto names = wan_vae_layout(config), recorded_names = wan_vae_layout(as_recorded);
  std::vector<std::pair<std::string, Tensor>> tensors;
  std::size_t found = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto& [name, shape] = recorded_names[i];
    const bool there = recorded.contains(name);
    tensors.emplace_back(names[i].name, there ? recorded.at(name) : at::zeros(shape));
    CHECK(tensors.back().second.sizes() == at::IntArrayRef(shape));
    found += there ? 1 : 0;
  }
  CHECK(found == recorded.size());
  return tensors;
}

WanVae load_tensors(const std::vector<std::pair<std::string, Tensor>>& tensors,
                    const WanVaeConfig& config, bool tf32 = false) {
  const test::Folder folder;
  write_safetensors(folder / "vae.safetensors", tensors);
  const Weights weights = Weights::open(folder / "vae.safetensors", at::kCPU, at::kFloat);
  CHECK((wan_vae_naming_of(weights) == config.naming));
  return WanVae::load(weights, config, {KernelPolicy::automatic, tf32});
}

WanVaeConfig config_of(const Json& json) {
  const test::Folder folder;
  std::ofstream(folder / "config.json") << json;
  return WanVaeConfig::load(folder / "config.json");
}

void check_config_refusal(const Json& change, std::string_view part) {
  const std::string message = test::message_of([&] { config_of(change); });
  CAPTURE(message);
  CHECK(message.find("config.json: " + std::string(part)) != std::string::npos);
}

// vae/config.json of 2.2 in the sizes of the tiny release, without the tables.
Json residual_json(const WanVaeConfig& config) {
  return {{"_class_name", "AutoencoderKLWan"},
          {"base_dim", config.base_dim},
          {"decoder_base_dim", config.decoder_base_dim},
          {"z_dim", config.z_dim},
          {"is_residual", true},
          {"in_channels", 12},
          {"out_channels", 12},
          {"patch_size", 2},
          {"scale_factor_spatial", 16},
          {"latents_mean", config.latents_mean},
          {"latents_std", config.latents_std}};
}

// name, shape as "96x3x3x3x3" -> the table's lines behind the heading.
std::vector<std::vector<std::string>> read_table(const fs::path& path) {
  std::ifstream file(path);
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(file, line);) {
    std::istringstream cells(line);
    std::vector<std::string>& row = rows.emplace_back();
    for (std::string cell; std::getline(cells, cell, '\t');) row.push_back(cell);
  }
  rows.erase(rows.begin());
  return rows;
}

// Column `name` of a table is the layout, whatever the order.
void check_layout(const fs::path& path, WanVaeConfig config, WanVaeNaming naming,
                  std::size_t column) {
  CAPTURE(path.string());
  config.naming = naming;
  std::map<std::string, std::string> expected, found;
  for (const auto& row : read_table(path)) expected.emplace(row.at(column), row.back());
  for (const auto& [name, shape] : wan_vae_layout(config))
    found.emplace(name, fmt::format("{}", fmt::join(shape, "x")));
  CHECK(found == expected);
}

}  // namespace

TEST_CASE("recorded cases of Wan: every chunk's blocks, the posterior, the frames, tiles" *
          doctest::test_suite("needs goldens")) {
  const fs::path goldens = full_goldens();
  if (goldens.empty()) return test::skip("the full recordings are not here");
  for (const char* name : {"vae_wan21", "vae_wan22", "vae_wan21_tiled"}) check_case(goldens, name);
}

TEST_CASE("a recorded latent becomes its frames, in both namings") {
  WanVaeConfig config = WanVaeConfig::load(own_goldens() / "config.json");
  const NamedTensors recorded = read_trace(own_goldens() / "decode.safetensors");
  const Tensor latent = recorded.at("final.latent")[0];
  const WanVae vae = load_tensors(own_tensors(config), config);
  CHECK((vae.denormalise(latent) - recorded.at("vae.latent_denormalized")[0])
            .abs()
            .max()
            .item<double>() < 1e-6);
  const Tensor frames = cases::decode(vae, latent.permute({1, 2, 3, 0}));
  CHECK(frames.sizes() == at::IntArrayRef({3, 9, 32, 48}));
  const Tensor found = frames.slice(2, 0, std::nullopt, 2).slice(3, 0, std::nullopt, 2);
  CHECK((found - recorded.at("vae.decoded_every_2")[0]).abs().max().item<double>() < 2e-5);
  config.naming = WanVaeNaming::original;
  const WanVae original = load_tensors(own_tensors(config), config);
  CHECK(cases::decode(original, latent.permute({1, 2, 3, 0})).equal(frames));
}

TEST_CASE("a recorded latent becomes its frames in tf32, at most one level away") {
  const WanVaeConfig config = WanVaeConfig::load(own_goldens() / "config.json");
  const NamedTensors recorded = read_trace(own_goldens() / "decode.safetensors");
  const Tensor latent = recorded.at("final.latent")[0].permute({1, 2, 3, 0});
  const Tensor frames = cases::decode(load_tensors(own_tensors(config), config), latent);
  const Tensor found = cases::decode(load_tensors(own_tensors(config), config, true), latent);
  const auto levels = [](const Tensor& of) { return frames_to_uint8(of).to(at::kInt); };
  CHECK(cases::relative_norm(found, frames) < 0.002);
  CHECK(!found.equal(frames));
  CHECK((levels(found) - levels(frames)).abs().max().item<int>() <= 1);
}

TEST_CASE("tf32 of Wan 2.1 with random weights, both directions") {
  WanVaeConfig config = WanVaeConfig::wan21();
  config.base_dim = config.decoder_base_dim = 16;
  const Weights weights = Weights::dummy(at::kCPU, at::kFloat);
  cases::check_tf32(WanVae::load(weights, config),
                    WanVae::load(weights, config, {KernelPolicy::automatic, true}),
                    cases::draw({3, 4, 6, 16}, 22), 0.0015);
}

TEST_CASE("2.2 in the names of diffusers computes what it does in its own, to the bit") {
  const TensorFile released = TensorFile::open(cases::checkpoint());
  WanVaeConfig config =
      WanVaeConfig::infer(Weights::open(cases::checkpoint(), at::kCPU, at::kFloat));
  const auto original = wan_vae_layout(config);
  config = config_of(residual_json(config));
  const auto names = wan_vae_layout(config);
  CHECK(original.size() == released.entries().size());
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (std::size_t i = 0; i < names.size(); ++i)
    tensors.emplace_back(names[i].name, released.view(original[i].name));
  const WanVae vae = load_tensors(tensors, config), own = cases::load({});
  const Tensor latent = cases::draw({3, 2, 3, 48}, 11);
  const Tensor frames = cases::decode(own, latent);
  CHECK(cases::decode(vae, latent).equal(frames));
  CHECK(vae.encode(frames).mu.equal(own.encode(frames).mu));
}

TEST_CASE("the tensors of the released sizes" * doctest::test_suite("needs goldens")) {
  const fs::path goldens = full_goldens();
  if (goldens.empty()) return test::skip("the full recordings are not here");
  using enum WanVaeNaming;
  const fs::path shapes = goldens / "real_shapes", names = goldens / "cases/single_file_original";
  check_layout(shapes / "vae21.tsv", WanVaeConfig::wan21(), diffusers, 0);
  check_layout(shapes / "vae22.tsv", WanVaeConfig::wan22(), diffusers, 0);
  check_layout(names / "names_vae21.tsv", WanVaeConfig::wan21(), original, 0);
  check_layout(names / "names_vae22.tsv", WanVaeConfig::wan22(), original, 0);
}

TEST_CASE("what config.json leaves out is Wan 2.1's") {
  const WanVaeConfig config = config_of(Json::object()), released = WanVaeConfig::wan21();
  CHECK(config.spatial() == 8);
  CHECK(config.patch_channels() == 3);
  CHECK(wan_vae_weight_bytes(config, at::kFloat) == 4 * std::int64_t{126'892'531});
  CHECK(config.latents_std == released.latents_std);
  CHECK(config_of({{"base_dim", 8}, {"decoder_base_dim", nullptr}}).decoder_base_dim == 8);
  CHECK(config_of({{"dropout", 0.0}, {"clip_output", false}}).base_dim == 96);
}

TEST_CASE("a config.json that cannot be honoured names the key") {
  check_config_refusal({{"_class_name", "AutoencoderKL"}}, "_class_name: found \"AutoencoderKL\"");
  check_config_refusal({{"attn_scales", {0.5}}}, "attn_scales: found [0.5], expected []");
  check_config_refusal({{"base_dim", 0}}, "base_dim: 0 is out of range");
  check_config_refusal({{"z_dim", 48}}, "latents_mean: 16 values, expected 48");
  check_config_refusal({{"latents_mean", {1, 2}}}, "latents_mean: 2 values, expected 16");
  check_config_refusal({{"latents_mean", "x"}}, "latents_mean: found \"x\"");
  check_config_refusal({{"latents_std", std::vector<double>(16, 0.0)}}, "latents_std: found");
  check_config_refusal({{"dim_mult", {1, 2}}}, "dim_mult: found [1,2]");
  check_config_refusal({{"dim_mult", {1, 2, 4}}}, "temperal_downsample: found null, expected 2");
  check_config_refusal({{"temperal_downsample", {true, true, true}}}, "temperal_downsample: found");
  check_config_refusal({{"scale_factor_spatial", 16}},
                       "scale_factor_spatial: found 16, expected 8");
  check_config_refusal({{"scale_factor_temporal", 8}}, "scale_factor_temporal: found 8");
  check_config_refusal({{"in_channels", 4}}, "in_channels: found 4, expected 3");
  check_config_refusal({{"patch_size", 2}}, "in_channels: not given");
  check_config_refusal({{"patch_size", 99}}, "patch_size: 99 is out of range");
  check_config_refusal({{"is_residual", 1}}, "is_residual: found 1, expected true or false");
  check_config_refusal({{"is_residual", true}, {"dim_mult", {1, 4, 4, 4}}}, "dim_mult: found");
}

TEST_CASE("tiles of one picture make that picture again") {
  const WanVaeTiling tiling{32, 48, 24, 32};
  for (const std::int64_t h : {4, 7, 8, 11}) {
    const std::int64_t w = 13, scale = 4;
    const Tensor whole = cases::draw({2, h * scale, w * scale, 3}, 12);
    std::int64_t count = 0;
    const Tensor found = wan_vae_blend_tiles({h, w, 2, 8, tiling}, [&](const WanVaeTile& tile) {
      ++count;
      CHECK(tile.h <= 4);
      CHECK(tile.w <= 6);
      return whole.narrow(1, tile.y * scale, tile.h * scale)
          .narrow(2, tile.x * scale, tile.w * scale)
          .clone();
    });
    CHECK(count == (h + 2) / 3 * 4);
    CHECK(found.allclose(whole));
  }
}

TEST_CASE("frames no larger than a tile are not cut, larger ones come chunk by chunk, too") {
  const WanVae vae = cases::load({});
  const Tensor latent = cases::draw({3, 3, 4, 48}, 13);
  const auto decode = [&](const WanVaeTiling& tiling) {
    WanVaeDecoder decoder(vae, latent, tiling);
    std::vector<Tensor> frames;
    for (const std::int64_t count : {1, 4, 4}) {
      frames.push_back(decoder.next());
      CHECK(frames.back().size(1) == count);
    }
    CHECK(!decoder.has_next());
    return at::cat(frames, 1);
  };
  const Tensor whole = cases::decode(vae, latent);
  CHECK(decode({}).equal(whole));
  const WanVaeTiling tiling{32, 32, 16, 16};
  const Tensor tiled = decode(tiling);
  CHECK(tiled.sizes() == whole.sizes());
  CHECK(!tiled.equal(whole));
  CHECK(vae.encode(whole, WanVaeTiling{}).mu.equal(vae.encode(whole).mu));
  CHECK(vae.encode(whole, tiling).mu.sizes() == at::IntArrayRef({48, 3, 3, 4}));
}

TEST_CASE("the memory of a pass of Wan 2.1 is what memory.h says") {
  WanVaeConfig config = WanVaeConfig::wan21();
  config.base_dim = config.decoder_base_dim = 32;
  const WanVae vae = WanVae::load(Weights::dummy(at::kCPU, at::kFloat), config);
  const std::int64_t width = 32, height = 576;
  const auto check = [](std::int64_t found, std::int64_t planned) {
    CAPTURE(found);
    CAPTURE(planned);
    CHECK(static_cast<double>(found) < 1.02 * static_cast<double>(planned));
    CHECK(static_cast<double>(found) > 0.95 * static_cast<double>(planned));
  };
  for (const std::int64_t t : {1, 3}) {
    CAPTURE(t);
    const WanVaeClip clip{width, height, WanVaeConfig::frames(t)};
    const Tensor latent = cases::draw({t, height / 8, width / 8, 16}, 14);
    check(peak_bytes([&] {
            WanVaeDecoder decoder(vae, latent);
            while (decoder.has_next()) decoder.next();
          }),
          wan_vae_decode_bytes(config, clip, at::kFloat));
    const Tensor video = cases::draw({3, clip.frames, height, width}, 15);
    check(peak_bytes([&] { vae.encode(video); }), wan_vae_encode_bytes(config, clip, at::kFloat));
  }
  const WanVaeClip clip{1280, 704, 81};
  CHECK(wan_vae_decode_bytes(config, clip, at::kFloat, {}) ==
        wan_vae_decode_bytes(config, {256, 256, 81}, at::kFloat));
  CHECK(wan_vae_encode_bytes(config, {64, 64, 9}, at::kFloat, {}) ==
        wan_vae_encode_bytes(config, {64, 64, 9}, at::kFloat));
}

}  // namespace diptych
