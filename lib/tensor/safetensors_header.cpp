#include "lib/tensor/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "lib/tensor/dtype.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {
namespace {

// One tensor's object while it is being read.
struct Draft {
  std::optional<at::ScalarType> dtype;
  std::optional<std::vector<std::int64_t>> shape;
  std::optional<std::vector<std::int64_t>> offsets;
};

// Reads the header event by event: nlohmann's document tree would silently keep one of two entries
// of the same name. The grammar is an object of objects of strings and number arrays, so depth is
// bounded by what is accepted, not by a counter.
class HeaderReader : public nlohmann::json::json_sax_t {
 public:
  explicit HeaderReader(std::string file) : file_(std::move(file)) {}
  SafetensorsHeader header;

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_float(double, const std::string& text) override {
    return unexpected(fmt::format("the number {}", shown_name(text)));
  }
  bool binary(nlohmann::json::binary_t&) override { return unexpected("binary data"); }

  bool number_integer(std::int64_t value) override {
    if (list_ == nullptr) return unexpected(fmt::format("the number {}", value));
    if (value < 0) fail("{} holds the negative number {}", place(), value);
    append(value);
    return true;
  }

  bool number_unsigned(std::uint64_t value) override {
    if (list_ == nullptr) return unexpected(fmt::format("the number {}", value));
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      fail("{} holds {}, more than 63 bits", place(), value);
    }
    append(static_cast<std::int64_t>(value));
    return true;
  }

  bool string(std::string& value) override {
    if (where_ == Where::metadata) {
      header.metadata[key_] = std::move(value);
    } else if (where_ == Where::tensor && key_ == "dtype" && list_ == nullptr) {
      draft_.dtype = dtype_from_name(value);
      if (!draft_.dtype)
        fail("tensor {} has the unknown dtype {}", shown_name(name_), shown_name(value));
    } else {
      return unexpected(fmt::format("the string {}", shown_name(value)));
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (where_ == Where::start) {
      where_ = Where::top;
    } else if (where_ == Where::top) {
      where_ = name_ == kMetadata ? Where::metadata : Where::tensor;
      draft_ = {};
    } else {
      return unexpected("an object");
    }
    return true;
  }

  bool key(std::string& text) override {
    if (where_ == Where::top) {
      name_ = std::move(text);
      const bool twice = name_ == kMetadata ? std::exchange(has_metadata_, true)
                                            : !header.entries.try_emplace(name_).second;
      if (twice) fail("the name {} appears twice in the header", shown_name(name_));
      return true;
    }
    key_ = std::move(text);
    if (where_ == Where::metadata) {
      if (!header.metadata.try_emplace(key_).second) fail("{} appears twice", place());
      return true;
    }
    const bool twice = (key_ == "dtype" && draft_.dtype) || (key_ == "shape" && draft_.shape) ||
                       (key_ == "data_offsets" && draft_.offsets);
    if (twice) fail("{} appears twice", place());
    const bool known = key_ == "dtype" || key_ == "shape" || key_ == "data_offsets";
    if (!known) fail("tensor {} has the unknown key {}", shown_name(name_), shown_name(key_));
    return true;
  }

  bool end_object() override {
    if (where_ == Where::tensor) finish_tensor();
    where_ = where_ == Where::top ? Where::start : Where::top;
    return true;
  }

  bool start_array(std::size_t) override {
    if (where_ != Where::tensor || list_ != nullptr || key_ == "dtype")
      return unexpected("an array");
    list_ = key_ == "shape" ? &draft_.shape.emplace() : &draft_.offsets.emplace();
    return true;
  }

  bool end_array() override {
    list_ = nullptr;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    fail("the header is not valid JSON at its byte {}", position);
  }

 private:
  enum class Where { start, top, metadata, tensor };
  static constexpr std::string_view kMetadata = "__metadata__";

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw InputError("{}: {}", file_, fmt::format(format, std::forward<Args>(args)...));
  }

  std::string place() const {
    if (where_ == Where::metadata) return fmt::format("metadata key {}", shown_name(key_));
    if (where_ == Where::tensor) return fmt::format("{} of tensor {}", key_, shown_name(name_));
    return where_ == Where::top ? shown_name(name_) : "the header";
  }

  bool unexpected(std::string_view found) const {
    std::string_view expected = "an object";
    if (where_ == Where::metadata) expected = "a string";
    if (where_ == Where::tensor) {
      expected = key_ == "dtype" ? "a string" : list_ != nullptr ? "an integer" : "an array";
    }
    fail("{} holds {}, expected {}", place(), found, expected);
  }

  void append(std::int64_t value) {
    const std::size_t most = key_ == "shape" ? kMaxRank : 2;
    if (list_->size() == most) fail("{} has more than {} numbers", place(), most);
    list_->push_back(value);
  }

  void finish_tensor() {
    const std::string shown = shown_name(name_);
    if (!draft_.dtype) fail("tensor {} has no dtype", shown);
    if (!draft_.shape) fail("tensor {} has no shape", shown);
    if (!draft_.offsets) fail("tensor {} has no data_offsets", shown);
    if (draft_.offsets->size() != 2) fail("data_offsets of tensor {} are not two numbers", shown);
    const std::int64_t begin = draft_.offsets->front(), end = draft_.offsets->back();
    const std::int64_t bytes = needed_bytes();
    if (end < begin || end - begin != bytes) {
      fail("tensor {} of dtype {} and shape {} needs {} bytes, its data_offsets are [{}, {}]",
           shown, dtype_name(*draft_.dtype), shown_shape(*draft_.shape), bytes, begin, end);
    }
    header.entries.find(name_)->second = {*draft_.dtype, std::move(*draft_.shape),
                                          static_cast<std::uint64_t>(begin),
                                          static_cast<std::uint64_t>(end)};
  }

  std::int64_t needed_bytes() const {
    const auto bytes = contiguous_bytes(*draft_.shape, *draft_.dtype);
    if (!bytes) {
      fail("shape {} of tensor {} overflows 63 bits", shown_shape(*draft_.shape),
           shown_name(name_));
    }
    return static_cast<std::int64_t>(*bytes);
  }

  std::string file_, name_, key_;
  Where where_ = Where::start;
  bool has_metadata_ = false;
  Draft draft_;
  std::vector<std::int64_t>* list_ = nullptr;  // the array being read, inside draft_
};

// The spans must follow each other from 0 to the end of the file: no holes that hide data, no bytes
// that two tensors share.
void check_tiling(const std::string& file, const SafetensorsHeader& header,
                  std::uint64_t data_bytes) {
  using Item = std::pair<const std::string, TensorEntry>;
  std::vector<const Item*> items;
  for (const Item& item : header.entries) items.push_back(&item);
  std::ranges::sort(
      items, {}, [](const Item* item) { return std::pair(item->second.begin, item->second.end); });
  std::uint64_t position = 0;
  for (const Item* item : items) {
    const auto& [name, entry] = *item;
    if (entry.end > data_bytes) {
      throw InputError(
          "{}: tensor {} ends at byte {} of the data, but the file holds {}: truncated?", file,
          shown_name(name), entry.end, data_bytes);
    }
    if (entry.begin != position) {
      throw InputError(
          "{}: tensor {} begins at byte {} of the data, {} byte {}", file, shown_name(name),
          entry.begin,
          entry.begin < position ? "overlapping the one that ends at" : "leaving a hole after",
          position);
    }
    position = entry.end;
  }
  if (position != data_bytes) {
    throw InputError("{}: the tensors end at byte {} of the data, but the file holds {}", file,
                     position, data_bytes);
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(const std::filesystem::path& path, std::string_view text,
                                           std::uint64_t data_bytes) {
  // The parser skips a byte order mark and stops at a zero byte; the format allows neither.
  if (!text.starts_with('{')) {
    throw InputError("{}: the header is not JSON, expected it to begin with '{{'", path.string());
  }
  if (const auto zero = text.find('\0'); zero != std::string_view::npos) {
    throw InputError("{}: the header is not valid JSON at its byte {}", path.string(), zero + 1);
  }
  HeaderReader reader(path.string());
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  check_tiling(path.string(), reader.header, data_bytes);
  return std::move(reader.header);
}

}  // namespace diptych
