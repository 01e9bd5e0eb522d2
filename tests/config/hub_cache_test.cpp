// Checkpoints in a Hugging Face cache, laid out as huggingface_hub does.
#include "lib/config/hub_cache.h"

#include <map>

#include "tests/support/folder.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using test::message_of;

constexpr const char* kRevision = "5f1e0c8b";

// A cache with one model, "org/tiny-1.5", whose weights are a link to a blob.
struct Cache {
  test::Folder folder;
  fs::path hub, model, snapshot;

  explicit Cache(const std::string& below = "hub")
      : hub(folder.path() / below),
        model(hub / "models--org--tiny-1.5"),
        snapshot(model / "snapshots" / kRevision) {
    const std::string at = below + "/models--org--tiny-1.5/";
    folder.write(at + "refs/main", kRevision);
    folder.write(at + "blobs/abc", "weights");
    folder.write(at + "snapshots/" + kRevision + "/config.json", "{}");
    fs::create_symlink("../../blobs/abc", snapshot / "ema.safetensors");
  }
  fs::path find(const std::string& name = "org/tiny-1.5") const {
    return model_folder(name, {{{"HF_HUB_CACHE", hub.string()}}}, "--model");
  }
  std::string error() const {
    return message_of([&] { find(); });
  }
};

TEST_CASE("a model of the cache is found by its name") {
  const Cache cache;
  CHECK(cache.find() == cache.snapshot);
  CHECK(model_name(cache.snapshot) == "org/tiny-1.5");
  CHECK(model_name(cache.snapshot / "") == "org/tiny-1.5");
}

TEST_CASE("the variables that say where the cache is, the strongest first") {
  const Cache own("a"), home("b/hub"), xdg("c/huggingface/hub"), user("d/.cache/huggingface/hub");
  std::map<std::string, std::string> variables;
  const auto found = [&] { return model_folder("org/tiny-1.5", {variables}, "--model"); };
  variables["HOME"] = (user.folder.path() / "d").string();
  CHECK(found() == user.snapshot);
  variables["XDG_CACHE_HOME"] = (xdg.folder.path() / "c").string();
  CHECK(found() == xdg.snapshot);
  variables["HF_HOME"] = (home.folder.path() / "b").string();
  CHECK(found() == home.snapshot);
  variables["HF_HUB_CACHE"] = own.hub.string();
  CHECK(found() == own.snapshot);
}

TEST_CASE("what is no name on the hub is left as it is") {
  const Cache cache;
  for (const char* path :
       {"model", "a/b/c", "/org/tiny-1.5", "./tiny", "../tiny", "org/", "a b/c"}) {
    CAPTURE(path);
    CHECK(cache.find(path) == path);
    CHECK(model_name(path) != "");
  }
  const std::string there = cache.folder.path().string();
  CHECK(cache.find(there) == there);
  CHECK(model_name("/models/tiny/") == "tiny");
  CHECK(model_name("/models/tiny/.") == "tiny");
  CHECK(model_name("/models/tiny/part/..") == "tiny");
  for (const char* name : {"org/tiny-1.5", "tiny"}) CHECK(model_name(path_of_name(name)) == name);
}

TEST_CASE("a model that is not there comes with the command to get it") {
  const Cache cache;
  CHECK(message_of([&] { cache.find("org/other"); }) ==
        "--model: org/other: no such folder, and not in the Hugging Face cache (" +
            cache.hub.string() + "); to get it: hf download org/other");
  CHECK(message_of([] { model_folder("org/other", {}, "--model"); }) ==
        "--model: org/other: no such folder, and not in the Hugging Face cache (HF_HOME and HOME "
        "are not set); to get it: hf download org/other");
}

TEST_CASE("a download that was stopped is named") {
  const Cache cache;
  const auto with = [&](const std::string& problem) {
    return "--model: org/tiny-1.5: not complete in the Hugging Face cache (" +
           cache.model.string() + ": " + problem + "); to go on: hf download org/tiny-1.5";
  };
  cache.folder.write("hub/models--org--tiny-1.5/blobs/def.incomplete", "wei");
  CHECK(cache.error() == with("a file is not there to its end"));
  fs::remove(cache.model / "blobs" / "def.incomplete");
  fs::rename(cache.model / "blobs" / "abc", cache.folder.path() / "abc");
  CHECK(cache.error() == with("ema.safetensors is missing"));
  fs::remove(cache.snapshot / "ema.safetensors");
  CHECK(cache.error() == with("it has no weights"));
  fs::remove_all(cache.snapshot);
  CHECK(cache.error() == with("no snapshot 5f1e0c8b"));
  cache.folder.write("hub/models--org--tiny-1.5/refs/main", "../../x");
  CHECK(cache.error() == with("no revision main"));
  fs::remove_all(cache.model / "refs");
  CHECK(cache.error() == with("no revision main"));
}

}  // namespace
}  // namespace diptych
