#include "lib/tensor/checkpoint_files.h"

#include "lib/tensor/safetensors.h"
#include "tests/tensor/support.h"

namespace diptych {
namespace {

void put(const std::filesystem::path& path, const std::vector<std::string>& names,
         float value = 1) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const auto& name : names) tensors.emplace_back(name, at::full({2}, value));
  write_safetensors(path, tensors);
}

std::string open_error(const std::filesystem::path& path) {
  return input_error([&] { open_checkpoint(path); });
}

TEST_CASE("open_checkpoint: which file of a folder counts") {
  const test::Folder folder;
  check_contains(open_error(folder.path()),
                 "holds no *.safetensors and no *.safetensors.index.json");
  check_contains(open_error(folder / "absent"), "absent: cannot be read: No such file");
  put(folder / "b.safetensors", {"b"});
  CHECK(open_checkpoint(folder.path()).path == folder / "b.safetensors");
  put(folder / "a.safetensors", {"a"});
  check_contains(open_error(folder.path()),
                 "holds several checkpoints (a.safetensors, b.safetensors), expected one");
  write_file(folder / "x.safetensors.index.json", R"({"weight_map":{"a":"a.safetensors"}})");
  CHECK(open_checkpoint(folder.path()).path == folder / "x.safetensors.index.json");
  write_file(folder / "y.safetensors.index.json", "{}");
  check_contains(open_error(folder.path()), "(x.safetensors.index.json, y.safetensors.index.json)");
  put(folder / "model.safetensors", {"m"});
  const auto model = open_checkpoint(folder.path());
  CHECK(model.path == folder / "model.safetensors");
  CHECK(model.owner.contains("m"));
}

TEST_CASE("open_checkpoint: shards behind an index") {
  const test::Folder folder;
  const auto index = folder / "model.safetensors.index.json";
  put(folder / "1.safetensors", {"a", "tied", "extra"}, 1);
  put(folder / "2.safetensors", {"b", "tied"}, 2);
  write_file(index, R"({"metadata":{"total_size":32},"weight_map":)"
                    R"({"a":"1.safetensors","b":"2.safetensors","tied":"2.safetensors"}})");
  const auto checkpoint = open_checkpoint(index);
  REQUIRE(checkpoint.files.size() == 2);
  REQUIRE(checkpoint.owner.size() == 4);  // "extra" too: it must not vanish
  CHECK(checkpoint.owner.at("extra") == checkpoint.owner.at("a"));
  const auto& owner = checkpoint.files[checkpoint.owner.at("tied")];
  CHECK(owner.view("tied")[0].item<float>() == 2);  // the index decides between two
}

TEST_CASE("open_checkpoint: the golden checkpoint, a folder with an index and a second model") {
  const auto checkpoint = open_checkpoint(DIPTYCH_SOURCE_DIR "/tests/goldens/bagel/checkpoint");
  CHECK(checkpoint.path.filename() == "model.safetensors.index.json");
  REQUIRE(checkpoint.files.size() == 1);  // not the autoencoder's
  CHECK(checkpoint.owner.size() == 139);
  const TensorEntry& embedding =
      checkpoint.files[0].entries().at("language_model.model.embed_tokens.weight");
  CHECK(embedding.shape == std::vector<std::int64_t>{640, 64});
}

TEST_CASE("tensor_files_in: those of the parts, too") {
  const test::Folder folder;
  for (const char* part : {"unet", "text", ".cache", "vae/deeper"})
    std::filesystem::create_directories(folder / part);
  for (const char* name :
       {"vae.pth", "unet/2.safetensors", "unet/1.safetensors", "text/config.json",
        "unet/model.safetensors.index.json", ".cache/x.safetensors", "vae/deeper/y.safetensors"})
    write_file(folder / name, "");
  using Paths = std::vector<std::filesystem::path>;
  CHECK(tensor_files_in(folder.path()) ==
        Paths{folder / "vae.pth", folder / "unet/1.safetensors", folder / "unet/2.safetensors"});
  CHECK(tensor_files_in(folder / "text").empty());
  check_contains(input_error([&] { tensor_files_in(folder / "absent"); }),
                 "absent: cannot be read: No such file");
}

TEST_CASE("open_checkpoint: indices that are wrong") {
  const test::Folder folder;
  const auto index = folder / "model.safetensors.index.json";
  put(folder / "1.safetensors", {"a"});
  const auto check = [&](std::string_view text, std::string_view fact) {
    CAPTURE(text.substr(0, 100));
    write_file(index, text);
    const std::string message = open_error(index);
    check_contains(message, index.string() + ":");
    check_contains(message, fact);
    CHECK(message.find('\n') == std::string::npos);
  };
  check(R"({"weight_map":{"a":"model-00002-of-00002.safetensors"}})",
        "names the shard \"model-00002-of-00002.safetensors\", which is not beside it");
  check(R"({"weight_map":{"b":"1.safetensors"}})",
        "puts tensor \"b\" into 1.safetensors, which lacks it");
  check(R"({"weight_map":{"a":"../1.safetensors"}})",
        "names the shard \"../1.safetensors\", expected a file beside the index");
  check(R"({"weight_map":{"a":"1.safetensors\u0000"}})", "expected a file beside the index");
  check(R"({"weight_map":{"a":".."}})", "expected a file beside the index");
  check(R"({"weight_map":{"a":7}})", "weight_map of tensor \"a\" is not a file name");
  check(R"({"weight_map":{"a":"1.safetensors","a":"2.safetensors"}})",
        "the key \"a\" appears twice");
  check(R"({"weight_map":[]})", "has no object \"weight_map\"");
  check("[]", "has no object \"weight_map\"");
  check("3", "has no object \"weight_map\"");
  check("{}", "has no object \"weight_map\"");
  check("{\"weight_map\":", ":1:15: ends within its JSON: truncated?");
  check("", "is empty, expected JSON");
  check("\xFF", ":1:1: is not valid JSON");
  check(std::string(1'000'000, '['), "nested deeper than 16");
}

}  // namespace
}  // namespace diptych
