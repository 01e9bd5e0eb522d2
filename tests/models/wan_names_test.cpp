// The names of Wan's own release, at every released size, and what a single file says of its model.
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "lib/models/umt5/single_file.h"
#include "lib/models/wan/layout.h"
#include "lib/models/wan/names.h"
#include "lib/models/wan/single_file.h"
#include "lib/models/wan_vae/single_file.h"
#include "lib/tensor/safetensors.h"
#include "tests/support/folder.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

const fs::path kOwn = fs::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/wan";
const fs::path kCase = kOwn / "weights/single_file_original";

// Original name -> the other one.
std::map<std::string, std::string> table(const char* name) {
  std::ifstream file(kCase / name);
  std::map<std::string, std::string> names;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string original, other;
    std::getline(fields, original, '\t');
    std::getline(fields, other, '\t');
    names[original] = other;
  }
  return names;
}

}  // namespace

TEST_CASE("Wan: the names of both releases of a transformer") {
  for (const char* name : {"names_t2v.tsv", "names_i2v_extra.tsv"}) {
    const auto names = table(name);
    CHECK(names.size() > 200);
    for (const auto& [original, diffusers] : names) CHECK(wan_original_name(diffusers) == original);
  }
  WanConfig config;  // 14B
  CHECK(wan_layout(config).size() == table("names_t2v.tsv").size());
  std::set<std::string> originals;
  for (const TensorShape& tensor : wan_layout(config))
    originals.insert(wan_original_name(tensor.name));
  for (const auto& [original, diffusers] : table("names_t2v.tsv"))
    CHECK(originals.contains(original));
}

TEST_CASE("Wan: the names of both releases of the autoencoders and the text encoder") {
  for (const auto& [name, config] : {std::pair{"names_vae21.tsv", WanVaeConfig::wan21()},
                                     {"names_vae22.tsv", WanVaeConfig::wan22()}}) {
    const auto expected = table(name);
    const auto names = wan_vae_names(config);
    CHECK(names.size() == expected.size());
    for (const auto& [original, diffusers] : expected) {
      CAPTURE(original);
      const auto found = names.find(original);
      CHECK((found != names.end() && found->second == diffusers));
    }
  }
  const auto names = table("names_umt5.tsv");
  CHECK(names.size() > 200);
  for (const auto& [original, other] : names) CHECK(umt5_original_name(other) == original);
}

TEST_CASE("Wan: a single file says its naming and its sizes") {
  const WanConfig known = WanConfig::load(kOwn / "checkpoint/transformer/config.json");
  const struct {
    fs::path path;
    const char* prefix;
    bool original;
  } files[] = {{kCase / "model_prefixed.safetensors", "model.diffusion_model.", true},
               {kOwn / "checkpoint/transformer", "", false}};
  for (const auto& file : files) {
    const CheckpointFiles files_of = open_checkpoint(file.path);
    const auto naming = wan_file_naming(files_of);
    REQUIRE(naming);
    CHECK(naming->prefix == file.prefix);
    CHECK(naming->original == file.original);
    const WanConfig sizes = wan_file_sizes(files_of, *naming, known);
    CHECK(sizes.num_attention_heads == known.num_attention_heads);
    CHECK(sizes.attention_head_dim == known.attention_head_dim);
    CHECK(sizes.in_channels == known.in_channels);
    CHECK(sizes.out_channels == known.out_channels);
    CHECK(sizes.text_dim == known.text_dim);
    CHECK(sizes.freq_dim == known.freq_dim);
    CHECK(sizes.ffn_dim == known.ffn_dim);
    CHECK(sizes.num_layers == known.num_layers);
    CHECK(sizes.cross_attn_norm == known.cross_attn_norm);
    CHECK_FALSE(sizes.image_dim);
    // No release has heads that divide a width of 24.
    CHECK_THROWS_AS(wan_file_sizes(files_of, *naming, std::nullopt), InputError);
  }
  const CheckpointFiles picture = open_checkpoint(kOwn / "checkpoint_i2v/transformer");
  const WanConfig of_picture = WanConfig::load(kOwn / "checkpoint_i2v/transformer/config.json");
  const WanConfig sizes = wan_file_sizes(picture, *wan_file_naming(picture), of_picture);
  CHECK(sizes.image_dim == of_picture.image_dim);
  CHECK(sizes.in_channels == 36);
}

TEST_CASE("Wan: the prefixed original file holds the checkpoint bit for bit") {
  const WanConfig config = WanConfig::load(kOwn / "checkpoint/transformer/config.json");
  const fs::path path = kCase / "model_prefixed.safetensors";
  const auto naming = wan_file_naming(open_checkpoint(path));
  REQUIRE(naming);
  const Weights file = Weights::open(path, at::kCPU, at::kFloat, wan_file_reading(*naming, config));
  const Weights folder = Weights::open(kOwn / "checkpoint/transformer", at::kCPU, at::kFloat);
  for (const TensorShape& tensor : wan_layout(config)) {
    CHECK(at::equal(file.get(tensor.name, tensor.shape), folder.get(tensor.name, tensor.shape)));
  }
  CHECK(file.unread().empty());
}

TEST_CASE("Wan: scaled fp8 files give the recorded values, whatever their scales are called") {
  const fs::path folder = kOwn / "weights/single_file_fp8_scaled";
  const WanConfig config = WanConfig::load(kOwn / "checkpoint/transformer/config.json");
  const SafetensorsFile expected = SafetensorsFile::open(folder / "expected.safetensors");
  for (const char* name : {"model_fp8_scaled.safetensors", "model_fp8_comfy_quant.safetensors"}) {
    const auto naming = wan_file_naming(open_checkpoint(folder / name));
    REQUIRE(naming);
    const Weights weights =
        Weights::open(folder / name, at::kCPU, at::kFloat, wan_file_reading(*naming, config));
    std::size_t checked = 0;
    for (const TensorShape& tensor : wan_layout(config)) {
      const std::string recorded = "dequant.scaled." + tensor.name;
      REQUIRE(expected.entries().contains(recorded));
      CHECK(at::equal(weights.get(tensor.name, tensor.shape), expected.view(recorded)));
      ++checked;
    }
    CHECK(checked == 69);
    CHECK(weights.unread().empty());
  }
}

TEST_CASE("Wan: files that say no size that a transformer has are refused") {
  const test::Folder folder;
  const auto naming_of = [&](const std::vector<std::pair<std::string, Tensor>>& tensors) {
    write_safetensors(folder / "m.safetensors", tensors);
    return wan_file_naming(open_checkpoint(folder / "m.safetensors"));
  };
  CHECK_FALSE(naming_of({{"a", at::ones({1})}}));
  CHECK_FALSE(naming_of({{"patch_embedding.weight", at::ones({1})}}));
  const auto naming = naming_of({{"patch_embedding.weight", at::ones({24})},
                                 {"head.modulation", at::ones({1})},
                                 {"blocks.99999999999.x", at::ones({1})}});
  REQUIRE(naming);
  CHECK_THROWS_AS(wan_file_sizes(open_checkpoint(folder / "m.safetensors"), *naming, std::nullopt),
                  InputError);
}

}  // namespace diptych
