#include "lib/tensor/state_dict.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <variant>

#include "lib/base/error.h"
#include "lib/tensor/tensor_file.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {
namespace {

// 130 bytes a tensor are usual. The values take up to some twenty times the bytes of the pickle.
constexpr std::size_t kMaxPickleBytes = std::size_t{16} << 20;
constexpr std::size_t kMaxStack = 1 << 16;  // the writer empties it every 1000 items
constexpr int kMaxDepth = 4;                // of tuples; the writer needs 2

constexpr std::array<std::pair<std::string_view, at::ScalarType>, 10> kStorages = {{
    {"DoubleStorage", at::kDouble},
    {"FloatStorage", at::kFloat},
    {"HalfStorage", at::kHalf},
    {"BFloat16Storage", at::kBFloat16},
    {"LongStorage", at::kLong},
    {"IntStorage", at::kInt},
    {"ShortStorage", at::kShort},
    {"CharStorage", at::kChar},
    {"ByteStorage", at::kByte},
    {"BoolStorage", at::kBool},
}};

struct None {};
enum class Function { rebuild_tensor, rebuild_parameter, ordered_dict };
struct Storage {
  std::string_view key;
  at::ScalarType dtype;
  std::int64_t elements;
};
using SharedView = std::shared_ptr<const StoredView>;
struct Value;
struct Tuple {
  std::shared_ptr<const std::vector<Value>> items;
  int depth = 1;
};
// Of its items only what the result may hold is kept, so no value contains a dict's values: they
// cannot be deep, nor contain themselves.
struct Dict {
  struct Item {
    std::optional<std::string_view> key;  // nothing: not a string
    SharedView tensor;                    // null: something else
    std::string_view kind;
  };
  std::vector<Item> items;
};
struct Value {
  std::variant<None, bool, std::int64_t, std::string_view, at::ScalarType, Function, Storage, Tuple,
               SharedView, std::shared_ptr<Dict>>
      is;
};

std::string_view kind_of(const Value& value) {
  constexpr std::array<std::string_view, std::variant_size_v<decltype(Value::is)>> kKinds = {
      "None",       "a boolean", "a number", "a string", "a storage class",
      "a function", "a storage", "a tuple",  "a tensor", "a dict"};
  return kKinds[value.is.index()];
}

// The stack machine of a pickle, for the opcodes that a state dict needs.
class Reader {
 public:
  Reader(const std::filesystem::path& path, std::span<const std::byte> pickle)
      : path_(path), text_(reinterpret_cast<const char*>(pickle.data()), pickle.size()) {}

  Dict read() {
    if (text_.size() > kMaxPickleBytes)
      fail("it holds {} bytes, more than {}", text_.size(), kMaxPickleBytes);
    if (take(1) != "\x80" || take(1) != "\2") fail("it is not a pickle of protocol 2");
    while (step()) {
    }
    const Value result = pop();
    const auto* const dict = std::get_if<std::shared_ptr<Dict>>(&result.is);
    if (!stack_.empty()) fail("more than one value is saved");
    if (dict == nullptr) fail("{} is saved, expected a dict", kind_of(result));
    return **dict;
  }

 private:
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw InputError("{}: data.pkl, byte {}: {}", path_.string(), opcode_at_,
                     fmt::format(format, std::forward<Args>(args)...));
  }

  std::string_view take(std::size_t size) {
    if (size > text_.size() - position_) fail("it ends too early: truncated?");
    const std::string_view taken = text_.substr(position_, size);
    position_ += size;
    return taken;
  }

  std::string_view take_line() {
    const std::size_t end = text_.find('\n', position_);
    if (end == std::string_view::npos) fail("it ends too early: truncated?");
    const std::string_view line = take(end - position_);
    position_ = end + 1;
    return line;
  }

  // A little-endian number of up to 8 bytes. With `is_signed` the topmost bit is its sign.
  std::int64_t take_number(std::size_t size, bool is_signed = false) {
    std::uint64_t value = 0;
    const std::string_view bytes = take(size);
    for (std::size_t i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    if (is_signed && size > 0 && size < sizeof(value) && (value >> (8 * size - 1)) != 0)
      value |= ~std::uint64_t{0} << (8 * size);
    return static_cast<std::int64_t>(value);
  }

  void push(Value value) {
    if (stack_.size() == kMaxStack) fail("more than {} values wait on the stack", kMaxStack);
    stack_.push_back(std::move(value));
  }

  Value pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) fail("a value is missing");
    Value value = std::move(stack_.back());
    stack_.pop_back();
    return value;
  }

  // The values behind the last mark.
  std::vector<Value> pop_to_mark() {
    if (marks_.empty()) fail("a mark is missing");
    const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Value> values(std::make_move_iterator(first),
                              std::make_move_iterator(stack_.end()));
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return values;
  }

  template <typename T>
  const T& as(const Value& value, std::string_view what, std::string_view expected) const {
    const T* const found = std::get_if<T>(&value.is);
    if (found == nullptr) fail("{} is {}, expected {}", what, kind_of(value), expected);
    return *found;
  }

  // Returns false behind the last one.
  bool step() {
    opcode_at_ = position_;
    const char opcode = take(1).front();
    switch (opcode) {
      case '.':
        return false;
      case '(':
        if (marks_.size() == kMaxStack) fail("more than {} marks", kMaxStack);
        marks_.push_back(stack_.size());
        break;
      case 't':
        push_tuple(pop_to_mark());
        break;
      case '\x85':
      case '\x86':
      case '\x87':
        push_tuple_of(static_cast<std::size_t>(opcode - '\x84'));
        break;
      case 's':
      case 'u':
        set_items(opcode == 'u');
        break;
      case 'c':
        push_global();
        break;
      case 'Q':
        push({storage_of(pop())});
        break;
      case 'R':
        call();
        break;
      case 'b':  // attributes of an OrderedDict, such as the _metadata of a state dict
        pop();
        push({as<std::shared_ptr<Dict>>(pop(), "what has attributes", "a dict")});
        break;
      default:
        if (!step_memo(opcode) && !step_constant(opcode))
          fail("opcode 0x{:02x}, which the pickle of a state dict does not have",
               static_cast<unsigned char>(opcode));
    }
    return true;
  }

  bool step_memo(char opcode) {
    switch (opcode) {
      case 'q':
      case 'r': {
        const std::int64_t place = take_number(opcode == 'q' ? 1 : 4);
        const Value top = pop();
        memo_[place] = top;
        push(top);
        return true;
      }
      case 'h':
      case 'j': {
        const auto found = memo_.find(take_number(opcode == 'h' ? 1 : 4));
        if (found == memo_.end()) fail("a value that was never kept");
        push(found->second);
        return true;
      }
      default:
        return false;
    }
  }

  bool step_constant(char opcode) {
    switch (opcode) {
      case 'N':
        push({None{}});
        return true;
      case '\x88':
      case '\x89':
        push({opcode == '\x88'});
        return true;
      case 'K':
        push({take_number(1)});
        return true;
      case 'M':
        push({take_number(2)});
        return true;
      case 'J':
        push({take_number(4, true)});
        return true;
      case '\x8a': {
        const auto size = static_cast<std::size_t>(take_number(1));
        if (size > sizeof(std::int64_t)) fail("a number of {} bytes", size);
        push({take_number(size, true)});
        return true;
      }
      case 'X':
        push({take(static_cast<std::size_t>(take_number(4)))});
        return true;
      case ')':
        push_tuple({});
        return true;
      case '}':
        push({std::make_shared<Dict>()});
        return true;
      default:
        return false;
    }
  }

  void push_tuple_of(std::size_t size) {
    std::vector<Value> items(size);
    for (std::size_t i = size; i-- > 0;) items[i] = pop();
    push_tuple(std::move(items));
  }

  void push_tuple(std::vector<Value> items) {
    int depth = 0;
    for (const Value& item : items) {
      if (const auto* const tuple = std::get_if<Tuple>(&item.is))
        depth = std::max(depth, tuple->depth);
    }
    if (depth == kMaxDepth) fail("tuples are nested deeper than {}", kMaxDepth);
    push({Tuple{std::make_shared<const std::vector<Value>>(std::move(items)), depth + 1}});
  }

  void set_items(bool many) {
    std::vector<Value> values;
    if (many) {
      values = pop_to_mark();
    } else {
      values.resize(2);
      values[1] = pop();
      values[0] = pop();
    }
    if (values.size() % 2 != 0) fail("a key has no value");
    const Value top = pop();
    const auto dict = as<std::shared_ptr<Dict>>(top, "what gets items", "a dict");
    for (std::size_t i = 0; i < values.size(); i += 2) {
      Dict::Item item{{}, {}, kind_of(values[i + 1])};
      if (const auto* const key = std::get_if<std::string_view>(&values[i].is)) item.key = *key;
      if (const auto* const view = std::get_if<SharedView>(&values[i + 1].is)) item.tensor = *view;
      dict->items.push_back(std::move(item));
    }
    push(top);
  }

  void push_global() {
    const std::string_view module = take_line(), name = take_line();
    if (module == "torch") {
      const auto* const found =
          std::ranges::find(kStorages, name, [](const auto& storage) { return storage.first; });
      if (found != kStorages.end()) return push({found->second});
    }
    if (module == "torch._utils" && name == "_rebuild_tensor_v2")
      return push({Function::rebuild_tensor});
    if (module == "torch._utils" && name == "_rebuild_parameter")
      return push({Function::rebuild_parameter});
    if (module == "collections" && name == "OrderedDict") return push({Function::ordered_dict});
    fail("it asks for {} of the Python module {}; only a dict of tensors is read, nothing is run",
         shown_name(name), shown_name(module));
  }

  Storage storage_of(const Value& id) const {
    const auto& items = items_of(id, "the id of a storage");
    if (items.size() != 5 || as<std::string_view>(items[0], "its kind", "a string") != "storage")
      fail("the id of a storage has {} values, expected 5 that begin with \"storage\"",
           items.size());
    return {as<std::string_view>(items[2], "the name of a storage", "a string"),
            as<at::ScalarType>(items[1], "the class of a storage", "a storage class"),
            as<std::int64_t>(items[4], "the size of a storage", "a number")};
  }

  const std::vector<Value>& items_of(const Value& tuple, std::string_view what) const {
    return *as<Tuple>(tuple, what, "a tuple").items;
  }

  std::vector<std::int64_t> numbers_of(const Value& tuple, std::string_view what) const {
    std::vector<std::int64_t> numbers;
    for (const Value& item : items_of(tuple, what)) {
      if (numbers.size() == kMaxRank) fail("{} has more than {} numbers", what, kMaxRank);
      numbers.push_back(as<std::int64_t>(item, what, "numbers"));
    }
    return numbers;
  }

  void call() {
    const Value arguments = pop();
    const auto& items = items_of(arguments, "what a function gets");
    switch (as<Function>(pop(), "what is called", "a function")) {
      case Function::ordered_dict:
        if (!items.empty()) fail("an OrderedDict is made of {} values", items.size());
        return push({std::make_shared<Dict>()});
      case Function::rebuild_parameter:  // tensor, requires_grad, hooks
        if (items.size() != 3) fail("a parameter is made of {} values, expected 3", items.size());
        return push({as<SharedView>(items[0], "a parameter", "a tensor")});
      case Function::rebuild_tensor:
        return push({tensor_of(items)});
    }
  }

  // storage, offset, shape, strides, requires_grad, hooks, and in newer files the bits that say
  // whether it is to be read negated or conjugated.
  SharedView tensor_of(const std::vector<Value>& items) const {
    if (items.size() != 6 && items.size() != 7)
      fail("a tensor is made of {} values, expected 6 or 7", items.size());
    if (items.size() == 7 && !std::holds_alternative<None>(items[6].is) &&
        !as<std::shared_ptr<Dict>>(items[6], "what else a tensor has", "a dict")->items.empty())
      fail("a tensor is stored negated or conjugated");
    const auto storage = as<Storage>(items[0], "what holds a tensor", "a storage");
    return std::make_shared<const StoredView>(
        StoredView{std::string(storage.key), storage.dtype, storage.elements,
                   as<std::int64_t>(items[1], "the offset of a tensor", "a number"),
                   numbers_of(items[2], "the shape of a tensor"),
                   numbers_of(items[3], "the strides of a tensor")});
  }

  const std::filesystem::path& path_;
  std::string_view text_;
  std::size_t position_ = 0, opcode_at_ = 0;
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::int64_t, Value> memo_;
};

}  // namespace

std::vector<std::pair<std::string, StoredView>> read_state_dict(const std::filesystem::path& path,
                                                                std::span<const std::byte> pickle) {
  const Dict dict = Reader(path, pickle).read();
  std::vector<std::pair<std::string, StoredView>> tensors;
  std::set<std::string_view> names;
  for (const Dict::Item& item : dict.items) {
    if (!item.key) {
      throw InputError("{}: a key of its dict is not a string, expected names of tensors",
                       path.string());
    }
    if (item.tensor == nullptr) {
      throw InputError("{}: {} is {}, expected a tensor", path.string(), shown_name(*item.key),
                       item.kind);
    }
    if (!names.insert(*item.key).second)
      throw InputError("{}: the name {} appears twice", path.string(), shown_name(*item.key));
    tensors.emplace_back(*item.key, *item.tensor);
  }
  return tensors;
}

}  // namespace diptych
