#include <charconv>

#include "lib/base/error.h"
#include "lib/config/yaml_reader.h"
#include "lib/verify/probes.h"

namespace diptych {
namespace {

constexpr int kLargestCoordinate = 1'000'000, kLargestFrame = 1'000'000'000;

int whole_number(const YamlNode& node, const std::string& path, int largest) {
  int value = -1;
  const char* end = node.text.data() + node.text.size();
  const auto [stop, error] = std::from_chars(node.text.data(), end, value);
  const bool whole = node.kind == YamlNode::Kind::scalar && error == std::errc() && stop == end;
  if (!whole || value < 0 || value > largest) {
    yaml_error(
        node.where, path,
        fmt::format("found {}, expected a whole number from 0 to {}", node.description(), largest));
  }
  return value;
}

Probe read_probe(const YamlNode& node, const std::string& path, int tolerance) {
  if (node.kind == YamlNode::Kind::scalar) {
    try {
      return parse_probe(node.text, tolerance);
    } catch (const InputError& error) {
      yaml_error(node.where, path, error.what());
    }
  }
  YamlReader reader(node, path);
  Probe probe;
  probe.x = whole_number(reader.required("x"), reader.path_of("x"), kLargestCoordinate);
  probe.y = whole_number(reader.required("y"), reader.path_of("y"), kLargestCoordinate);
  const YamlNode& rgb = reader.required("rgb");
  if (rgb.kind != YamlNode::Kind::sequence || rgb.items.size() != 3) {
    yaml_error(rgb.where, reader.path_of("rgb"), "expected three levels, [R, G, B]");
  }
  for (std::size_t c = 0; c < 3; ++c) {
    probe.rgb[c] = whole_number(rgb.items[c], reader.path_of("rgb"), 255);
  }
  const YamlNode* own = reader.optional("tolerance");
  probe.tolerance =
      own == nullptr ? tolerance : whole_number(*own, reader.path_of("tolerance"), 255);
  if (const YamlNode* frame = reader.optional("frame"))
    probe.frame = whole_number(*frame, reader.path_of("frame"), kLargestFrame);
  reader.finish();
  return probe;
}

}  // namespace

std::vector<Probe> load_probes(const std::filesystem::path& path,
                               std::optional<int> default_tolerance) {
  const YamlNode root = load_yaml(path);
  YamlReader reader(root, "");
  int tolerance = kDefaultProbeTolerance;
  if (const YamlNode* node = reader.optional("tolerance")) {
    tolerance = whole_number(*node, "tolerance", 255);
  }
  const YamlNode& list = reader.required("probes");
  reader.finish();
  if (list.kind != YamlNode::Kind::sequence || list.items.empty()) {
    yaml_error(list.where, "probes", "expected a list of probes");
  }
  std::vector<Probe> probes;
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    probes.push_back(read_probe(list.items[i], fmt::format("probes.{}", i),
                                default_tolerance.value_or(tolerance)));
  }
  return probes;
}

}  // namespace diptych
