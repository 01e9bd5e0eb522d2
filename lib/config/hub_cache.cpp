// The layout is that of huggingface_hub: models--ORG--NAME/{refs/main, snapshots/REVISION/, blobs/}
// (https://huggingface.co/docs/huggingface_hub/guides/manage-cache).
#include "lib/config/hub_cache.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "lib/base/text_file.h"
#include "lib/config/words.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kModels = "models--";

// "ORG/NAME", both of letters, digits and -_.
bool is_hub_name(const std::string& text) {
  const auto is_plain = [](std::string_view part) {
    return !part.empty() && part.front() != '.' && std::ranges::all_of(part, [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
    });
  };
  const std::size_t slash = text.find('/');
  if (slash == std::string::npos) return false;
  return is_plain(std::string_view(text).substr(0, slash)) &&
         is_plain(std::string_view(text).substr(slash + 1));
}

// Empty where no variable says where it is.
fs::path cache_folder(const Environment& environment) {
  const auto variable = [&](const char* name) { return environment(name).value_or(""); };
  if (const auto own = variable("HF_HUB_CACHE"); !own.empty()) return own;
  if (const auto home = variable("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  const fs::path below = fs::path("huggingface") / "hub";
  if (const auto cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache / below;
  const auto home = variable("HOME");
  return home.empty() ? fs::path() : fs::path(home) / ".cache" / below;
}

std::string folder_name(std::string name) {
  const std::size_t slash = name.find('/');
  return fmt::format("{}{}--{}", kModels, name.substr(0, slash), name.substr(slash + 1));
}

std::string revision_of(const fs::path& model) {
  std::error_code error;
  const fs::path file = model / "refs" / "main";
  if (!fs::is_regular_file(file, error)) return {};
  constexpr std::size_t kMostBytes = 256;
  std::string revision = read_text_start(file, kMostBytes);
  while (!revision.empty() && std::isspace(static_cast<unsigned char>(revision.back())) != 0)
    revision.pop_back();
  const bool is_name = revision.find('/') == std::string::npos && !revision.starts_with('.');
  return is_name ? revision : "";
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    files.push_back(entry->path());
  std::ranges::sort(files);
  return files;
}

// What a download that was stopped has left; "" where nothing speaks of one.
std::string missing_part(const fs::path& model, const fs::path& snapshot) {
  std::error_code ignored;
  const std::vector<fs::path> files = files_in(snapshot);
  const auto broken =
      std::ranges::find_if(files, [&](const fs::path& file) { return !fs::exists(file, ignored); });
  if (broken != files.end())
    return fmt::format("{} is missing", broken->lexically_relative(snapshot).string());
  for (const fs::path& blob : files_in(model / "blobs")) {
    if (blob.extension() == ".incomplete") return "a file is not there to its end";
  }
  const auto is_weights = [](const fs::path& file) { return file.extension() == ".safetensors"; };
  return std::ranges::any_of(files, is_weights) ? "" : "it has no weights";
}

}  // namespace

fs::path model_folder(const fs::path& model, const Environment& environment,
                      const Subject& subject) {
  std::error_code ignored;
  const std::string name = model.string();
  if (fs::exists(model, ignored) || !is_hub_name(name)) return model;
  const fs::path cache = cache_folder(environment);
  const fs::path cached = cache / folder_name(name);
  if (cache.empty() || !fs::is_directory(cached, ignored)) {
    throw subject.error(
        "{}: no such folder, and not in the Hugging Face cache ({}); to get it: "
        "hf download {}",
        name, cache.empty() ? "HF_HOME and HOME are not set" : cache.string(), name);
  }
  const std::string revision = revision_of(cached);
  fs::path snapshot = cached / "snapshots" / revision;
  std::string problem = revision.empty() ? "no revision main" : "";
  if (problem.empty() && !fs::is_directory(snapshot, ignored))
    problem = fmt::format("no snapshot {}", revision);
  if (problem.empty()) problem = missing_part(cached, snapshot);
  if (problem.empty()) return snapshot;
  throw subject.error(
      "{}: not complete in the Hugging Face cache ({}: {}); to go on: hf download {}", name,
      cached.string(), problem, name);
}

std::string model_name(const fs::path& folder) {
  std::error_code ignored;
  fs::path path = folder;
  for (const char* dots : {".", ".."}) {
    if (folder.filename() == dots) path = fs::weakly_canonical(folder, ignored);
  }
  if (path.filename().empty()) path = path.parent_path();
  const fs::path snapshots = path.parent_path();
  const std::string cached = snapshots.parent_path().filename().string();
  const std::size_t middle = cached.find("--", kModels.size());
  if (snapshots.filename() != "snapshots" || !cached.starts_with(kModels) ||
      middle == std::string::npos)
    return path.filename().string();
  return fmt::format("{}/{}", cached.substr(kModels.size(), middle - kModels.size()),
                     cached.substr(middle + 2));
}

fs::path path_of_name(const std::string& name) {
  return is_hub_name(name) ? fs::path(folder_name(name)) / "snapshots" / "main" : fs::path(name);
}

}  // namespace diptych
