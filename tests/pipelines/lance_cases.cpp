#include "tests/pipelines/lance_cases.h"

#include <cstdlib>
#include <fstream>
#include <stdexcept>

#include <fmt/format.h>

#include "lib/text/byte_level_bpe.h"

namespace diptych::test {
namespace {

using Json = nlohmann::json;

LanceMedium medium_of(const Json& name) {
  return parse_choice<LanceMedium>(name.get<std::string>()).value();
}

// A request as the official dataset file has it: a prompt, or an interleaved list.
LancePrompt prompt_of(LanceTask task, const Json& data) {
  if (data.is_string())
    return render_prompt(task, std::vector<LanceElement>{{LanceMedium::text, data}});
  const Json& array = data.at("interleave_array");
  if (is_question(task)) return render_question({array[1][0], array[1][1], array[1][2]});
  std::vector<LanceElement> elements;
  for (std::size_t i = 0; i < array.size(); ++i)
    elements.push_back({medium_of(data.at("element_dtype_array")[i]), array[i]});
  return render_prompt(task, elements);
}

// Both kinds of visual grid are recorded with doubled sides.
std::vector<LanceGrid> grids_of(const Tensor& thw) {
  std::vector<LanceGrid> grids;
  for (std::int64_t i = 0; i < thw.size(0); ++i) {
    const std::int64_t* grid = thw.const_data_ptr<std::int64_t>() + 3 * i;
    grids.push_back({grid[0], grid[1] / 2, grid[2] / 2});
  }
  return grids;
}

RecordedSequence sequence(const Json& entry, const Json& data,
                          std::shared_ptr<const SafetensorsFile> file, const std::string& prefix) {
  RecordedSequence recorded;
  recorded.entry = entry;
  recorded.task = parse_choice<LanceTask>(entry.at("task").get<std::string>()).value();
  recorded.prompt = prompt_of(recorded.task, data);
  recorded.file = std::move(file);
  recorded.prefix = prefix;
  recorded.name = prefix.empty() ? entry.at("case").get<std::string>() : "layout " + prefix;
  recorded.grids = grids_of(recorded.tensor("video_grid_thw"));
  return recorded;
}

void append_case(std::vector<RecordedSequence>& sequences, const std::filesystem::path& folder) {
  const Json description = read_json(folder / "case.json");
  if (!std::filesystem::exists(folder / "expected.safetensors")) return;
  const auto file = std::make_shared<const SafetensorsFile>(
      SafetensorsFile::open(folder / "expected.safetensors"));
  if (description.at("kind") == "positions") {
    for (const Json& layout : description.at("layouts")) {
      const std::string name = layout.at("name");
      sequences.push_back(sequence(layout, layout.at("data").front(), file, name));
    }
  } else if (file->entries().contains("tokens.input_ids")) {
    const bool has_dataset = std::filesystem::exists(folder / "dataset.json");
    const Json data =
        has_dataset ? read_json(folder / "dataset.json").front() : description.at("prompt");
    sequences.push_back(sequence(description, data, file, ""));
  }
}

}  // namespace

std::vector<std::filesystem::path> lance_goldens() {
  const char* named = std::getenv("DIPTYCH_GOLDENS");
  const std::filesystem::path source = DIPTYCH_SOURCE_DIR;
  const auto full =
      named != nullptr ? std::filesystem::path(named) : source.parent_path() / "shared/goldens";
  std::vector<std::filesystem::path> folders = {kLanceGoldens};
  if (std::filesystem::is_directory(full / "lance/cases")) {
    folders.push_back(full / "lance");
  } else if (named != nullptr) {
    throw std::runtime_error("DIPTYCH_GOLDENS: has no lance/cases: " + full.string());
  }
  return folders;
}

std::vector<std::filesystem::path> lance_case_folders(std::string_view name) {
  std::vector<std::filesystem::path> folders;
  for (const auto& goldens : lance_goldens()) {
    const auto folder = goldens / "cases" / name;
    if (std::filesystem::exists(folder / "case.json")) folders.push_back(folder);
  }
  return folders;
}

nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

const Tokenizer& lance_tokenizer() {
  static const auto tokenizer = load_byte_level_bpe(kLanceGoldens / "checkpoint/Lance_3B");
  return *tokenizer;
}

bool RecordedSequence::has(std::string_view tensor) const {
  return file->entries().contains(prefix.empty() ? std::string(tensor)
                                                 : fmt::format("{}.{}", prefix, tensor));
}

Tensor RecordedSequence::tensor(std::string_view tensor) const {
  if (!prefix.empty()) return file->view(fmt::format("{}.{}", prefix, tensor));
  const std::string of_tokens = fmt::format("tokens.{}", tensor);
  return file->view(file->entries().contains(of_tokens) ? of_tokens : std::string(tensor));
}

std::vector<RecordedSequence> recorded_sequences() {
  std::vector<RecordedSequence> sequences;
  for (const auto& goldens : lance_goldens()) {
    // "sequences": what pipeline cases hold about tokens and positions, and nothing else.
    for (const char* folder : {"cases", "sequences"}) {
      if (!std::filesystem::is_directory(goldens / folder)) continue;
      for (const auto& entry : std::filesystem::directory_iterator(goldens / folder))
        append_case(sequences, entry.path());
    }
  }
  return sequences;
}

}  // namespace diptych::test
