#include "lib/tensor/checkpoint_files.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/tensor/mapped_file.h"
#include "lib/tensor/pth.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kFileEnd = ".safetensors", kIndexEnd = ".safetensors.index.json";

std::vector<std::string> names_ending(const fs::path& folder, std::string_view end) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator item(folder, error), last; !error && item != last;
       item.increment(error)) {
    const std::string name = item->path().filename().string();
    if (name.ends_with(end)) names.push_back(name);
  }
  if (error) throw InputError("{}: cannot be read: {}", folder.string(), error.message());
  std::ranges::sort(names);
  return names;
}

fs::path choose_in_folder(const fs::path& folder) {
  const auto files = names_ending(folder, kFileEnd);
  const auto indices = names_ending(folder, kIndexEnd);
  if (std::ranges::binary_search(files, "model.safetensors")) return folder / "model.safetensors";
  // An index counts before a single file: that file may be the one shard of many that is there.
  if (indices.size() == 1) return folder / indices.front();
  if (indices.empty() && files.size() == 1) return folder / files.front();
  if (indices.empty() && files.empty()) {
    throw InputError("{}: holds no *.safetensors and no *.safetensors.index.json", folder.string());
  }
  throw InputError("{}: holds several checkpoints ({}), expected one; name the file instead",
                   folder.string(), fmt::join(indices.empty() ? files : indices, ", "));
}

std::map<std::string, std::string> read_weight_map(const fs::path& path) {
  const MappedFile map(path);
  const auto bytes = map.bytes();
  const json index =
      parse_strict_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
  const auto found = index.find("weight_map");
  if (found == index.end() || !found->is_object()) {
    throw InputError("{}: has no object \"weight_map\"", path.string());
  }
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, shard] : found->items()) {
    if (!shard.is_string()) {
      throw InputError("{}: weight_map of tensor {} is not a file name", path.string(),
                       shown_name(tensor));
    }
    auto name = shard.get<std::string>();
    // Shards lie beside their index; a path out of the folder is no checkpoint's.
    if (name.empty() || name == ".." || name == "." ||
        name.find_first_of(std::string_view("/\0", 2)) != name.npos) {
      throw InputError("{}: weight_map names the shard {}, expected a file beside the index",
                       path.string(), shown_name(name));
    }
    shards.emplace(tensor, std::move(name));
  }
  return shards;
}

CheckpointFiles open_index(const fs::path& index) {
  const auto weight_map = read_weight_map(index);
  CheckpointFiles checkpoint{index, {}, {}};
  std::map<std::string, std::size_t> places;  // shard name -> place in files
  for (const auto& [tensor, shard] : weight_map) {
    const auto [place, fresh] = places.try_emplace(shard, checkpoint.files.size());
    if (fresh) {
      if (!fs::exists(index.parent_path() / shard)) {
        throw InputError("{}: names the shard {}, which is not beside it", index.string(),
                         shown_name(shard));
      }
      checkpoint.files.push_back(TensorFile::open(index.parent_path() / shard));
    }
    const TensorFile& file = checkpoint.files[place->second];
    if (!file.entries().contains(tensor)) {
      throw InputError("{}: puts tensor {} into {}, which lacks it", index.string(),
                       shown_name(tensor), shard);
    }
    checkpoint.owner.emplace(tensor, place->second);
  }
  // What a shard holds beyond the index belongs to the checkpoint too and is reported if unread.
  for (std::size_t i = 0; i < checkpoint.files.size(); ++i) {
    for (const auto& [tensor, entry] : checkpoint.files[i].entries()) {
      checkpoint.owner.emplace(tensor, i);
    }
  }
  return checkpoint;
}

std::vector<std::string> names_of_parts(const fs::path& folder) {
  std::vector<std::string> parts = names_ending(folder, "");
  std::erase_if(parts, [&](const std::string& name) {
    std::error_code ignored;
    return name.starts_with('.') || !fs::is_directory(folder / name, ignored);
  });
  return parts;
}

void add_tensor_files(const fs::path& folder, std::vector<fs::path>& files) {
  for (const std::string& name : names_ending(folder, "")) {
    const bool named = name.ends_with(kFileEnd) || name.ends_with(kPthExtension);
    std::error_code ignored;
    if (named && !fs::is_directory(folder / name, ignored)) files.push_back(folder / name);
  }
}

}  // namespace

CheckpointFiles open_checkpoint(const fs::path& path) {
  std::error_code ignored;
  const fs::path file = fs::is_directory(path, ignored) ? choose_in_folder(path) : path;
  if (file.extension() == ".json") return open_index(file);
  CheckpointFiles checkpoint{file, {TensorFile::open(file)}, {}};
  for (const auto& [name, entry] : checkpoint.files.front().entries())
    checkpoint.owner.emplace(name, 0);
  return checkpoint;
}

std::vector<fs::path> tensor_files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  add_tensor_files(folder, files);
  for (const std::string& part : names_of_parts(folder)) add_tensor_files(folder / part, files);
  return files;
}

}  // namespace diptych
