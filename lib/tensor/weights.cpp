#include "lib/tensor/weights.h"

#include <cmath>
#include <set>

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/base/sha256.h"
#include "lib/base/user_cache.h"
#include "lib/tensor/checkpoint_files.h"
#include "lib/tensor/checkpoint_hash.h"
#include "lib/tensor/device_reader.h"
#include "lib/tensor/dtype.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {

struct Weights::Store {
  at::Device device;
  std::optional<CheckpointFiles> checkpoint;  // nullopt: dummy weights
  std::uint64_t seed = 0;
  std::set<std::string, std::less<>> read{};  // full names
  std::function<void(std::uint64_t bytes)> on_read{};
  std::unique_ptr<DeviceReader> reader{};  // within the life of a ReadAhead
};

namespace {

// A generator of its own for every tensor, so that neither the order of calls nor a tensor that is
// not asked for changes another.
at::Generator generator_for(std::uint64_t seed, const std::string& name, at::Device device) {
  Sha256 hash;
  hash.update(fmt::format("{}:{}", seed, name));
  const auto digest = hash.finish();
  std::uint64_t mixed = 0;
  for (const std::byte byte : std::span(digest).first(8)) {
    mixed = mixed << 8 | std::to_integer<std::uint64_t>(byte);
  }
  if (device.is_cpu()) return at::detail::createCPUGenerator(mixed);
  at::Generator generator = at::globalContext()
                                .getAcceleratorHooksInterface(device.type())
                                .getNewGenerator(device.index());
  generator.set_current_seed(mixed);
  return generator;
}

Tensor random_weight(std::uint64_t seed, const std::string& name, at::IntArrayRef shape,
                     at::TensorOptions options) {
  const at::ScalarType dtype = options.dtype().toScalarType();
  TORCH_CHECK(at::isFloatingType(dtype), "[weights] dummy weights of dtype ", dtype);
  // There is no normal_ for one-byte floats.
  const bool narrow = c10::elementSize(dtype) == 1;
  Tensor weight = at::empty(shape, narrow ? options.dtype(at::kBFloat16) : options);
  if (weight.numel() > 0) {
    const bool matrix = weight.dim() >= 2;
    const double fan_in = matrix ? static_cast<double>(weight.numel() / weight.size(0)) : 1;
    const bool scale = !matrix && (name == "weight" || name.ends_with(".weight"));
    weight.normal_(scale ? 1 : 0, matrix ? 1 / std::sqrt(fan_in) : 0.1,
                   generator_for(seed, name, weight.device()));
  }
  return narrow ? weight.to(dtype) : weight;
}

// The file and entry of a tensor. Throws with the nearest name where it is missing.
std::pair<const TensorFile&, const TensorEntry&> find(const CheckpointFiles& checkpoint,
                                                      const std::string& name) {
  if (const auto owner = checkpoint.owner.find(name); owner != checkpoint.owner.end()) {
    const TensorFile& file = checkpoint.files[owner->second];
    return {file, file.entries().find(name)->second};
  }
  NearestName nearest(name);
  for (const auto& [candidate, place] : checkpoint.owner) nearest.offer(candidate);
  const std::string& best = nearest.best();
  throw InputError("{}: tensor {} is missing{}", checkpoint.path.string(), shown_name(name),
                   best.empty() ? "" : fmt::format("; the nearest name is {}", shown_name(best)));
}

void check_entry(const TensorFile& file, const TensorEntry& entry, const std::string& name,
                 at::IntArrayRef shape, at::ScalarType dtype) {
  if (at::IntArrayRef(entry.shape) != shape) {
    throw InputError("{}: tensor {} has shape {}, expected {}", file.path().string(),
                     shown_name(name), shown_shape(entry.shape), shown_shape(shape));
  }
  // Between floating-point types a conversion is rounding; any other one would be a guess.
  const bool converts = at::isFloatingType(entry.dtype) && at::isFloatingType(dtype);
  if (entry.dtype != dtype && !converts) {
    throw InputError("{}: tensor {} has dtype {}, expected {}", file.path().string(),
                     shown_name(name), dtype_name(entry.dtype),
                     at::isFloatingType(dtype) ? "a floating-point one" : dtype_name(dtype));
  }
}

void expect_sequential_reads(const CheckpointFiles& checkpoint, bool sequential) {
  for (const TensorFile& file : checkpoint.files) file.expect_sequential_reads(sequential);
}

}  // namespace

Weights Weights::open(const std::filesystem::path& path, at::Device device, at::ScalarType dtype) {
  Weights weights;
  weights.store_ = std::make_shared<Store>(Store{device, open_checkpoint(path)});
  weights.dtype_ = dtype;
  // For a device every byte is read once; on the CPU most tensors stay views of the
  // map.
  expect_sequential_reads(*weights.store_->checkpoint, !device.is_cpu());
  return weights;
}

Weights Weights::dummy(at::Device device, at::ScalarType dtype, std::uint64_t seed) {
  Weights weights;
  weights.store_ = std::make_shared<Store>(Store{device, std::nullopt, seed});
  weights.dtype_ = dtype;
  return weights;
}

bool Weights::is_dummy() const {
  return !store_->checkpoint;
}

Weights Weights::scope(std::string_view prefix) const {
  Weights inner = *this;
  if (!prefix.empty()) inner.prefix_ += fmt::format("{}.", prefix);
  return inner;
}

Weights Weights::as(at::ScalarType dtype) const {
  Weights other = *this;
  other.dtype_ = dtype;
  return other;
}

Weights Weights::standing_in(std::string_view part) const {
  Weights other = *this;
  other.stood_in_ = part;
  return other;
}

std::string Weights::full_name(std::string_view name) const {
  std::string full = fmt::format("{}{}", prefix_, name);
  if (stood_in_.empty() || is_dummy() || store_->checkpoint->owner.contains(full)) return full;
  const std::size_t at = full.find(stood_in_);
  if (at == std::string::npos) return full;
  std::string other = full;
  other.erase(at, stood_in_.size());
  return store_->checkpoint->owner.contains(other) ? other : full;
}

at::TensorOptions Weights::options() const {
  return at::TensorOptions().device(store_->device).dtype(dtype_);
}

Tensor Weights::source(std::string_view name, at::IntArrayRef shape) const {
  const std::string full = full_name(name);
  if (is_dummy()) return random_weight(store_->seed, full, shape, options());
  check_interrupted();  // a load of gigabytes stops at the next tensor
  check(name, shape);
  const auto [file, entry] = find(*store_->checkpoint, full);
  if (store_->on_read) store_->on_read(entry.end - entry.begin);
  return file.view(full);
}

Tensor Weights::get(std::string_view name, at::IntArrayRef shape) const {
  if (!reads_ahead()) return source(name, shape).to(store_->device, dtype_);
  Tensor wanted = at::empty(shape, options());
  read(name, shape, wanted);
  return wanted;
}

void Weights::read(std::string_view name, at::IntArrayRef shape, const Tensor& into) const {
  TORCH_CHECK(into.sizes() == shape && into.scalar_type() == dtype_, "[weights] ", name,
              " of shape ", shape, " and dtype ", dtype_, " into ", into.sizes(), " of ",
              into.scalar_type());
  if (!reads_ahead()) {
    into.copy_(source(name, shape));
    return;
  }
  check(name, shape);
  const std::string full = full_name(name);
  const TensorEntry& entry = find(*store_->checkpoint, full).second;
  if (entry.dtype == dtype_ && into.is_contiguous()) return begin_read(full, into, {});
  begin_read(full, {}, [into](const Tensor& stored) { into.copy_(stored); });
}

void Weights::get_then(std::string_view name, at::IntArrayRef shape,
                       std::function<void(const Tensor&)> use) const {
  if (!reads_ahead()) return use(get(name, shape));
  check(name, shape);
  begin_read(full_name(name), {}, [dtype = dtype_, use = std::move(use)](const Tensor& stored) {
    use(stored.to(dtype));
  });
}

bool Weights::reads_ahead() const {
  return store_->reader != nullptr;
}

void Weights::begin_read(const std::string& full, Tensor into,
                         std::function<void(const Tensor&)> then) const {
  check_interrupted();
  const auto [file, entry] = find(*store_->checkpoint, full);
  const bool temporary = !into.defined();
  if (temporary)
    into = at::empty(entry.shape, at::TensorOptions().device(store_->device).dtype(entry.dtype));
  const std::uint64_t bytes = entry.end - entry.begin;
  // The store outlives its reader, which calls this.
  const auto arrived = [store = store_.get(), bytes, into, then = std::move(then)] {
    if (then) then(into);
    if (store->on_read) store->on_read(bytes);
  };
  store_->reader->read(file, entry, into, temporary, arrived);
}

Weights::ReadAhead::ReadAhead(const Weights& weights) : weights_(weights) {
  Store& store = *weights.store_;
  TORCH_CHECK(store.reader == nullptr, "[weights] read ahead twice");
  if (!weights.is_dummy() && !store.device.is_cpu())
    store.reader = std::make_unique<DeviceReader>(store.device);
}

Weights::ReadAhead::~ReadAhead() {
  weights_.store_->reader.reset();
}

void Weights::ReadAhead::finish() {
  if (weights_.store_->reader != nullptr) weights_.store_->reader->finish();
}

void Weights::check(std::string_view name, at::IntArrayRef shape) const {
  if (is_dummy()) return;
  const std::string full = full_name(name);
  const auto [file, entry] = find(*store_->checkpoint, full);
  check_entry(file, entry, full, shape, dtype_);
  store_->read.insert(full);
}

bool Weights::contains(std::string_view name) const {
  return is_dummy() || store_->checkpoint->owner.contains(full_name(name));
}

std::vector<std::int64_t> Weights::shape(std::string_view name) const {
  const std::string full = full_name(name);
  if (is_dummy()) {
    throw InputError("dummy weights: the shape of {} is not known; it must come from the config",
                     shown_name(full));
  }
  return find(*store_->checkpoint, full).second.shape;
}

std::vector<std::string> Weights::unread() const {
  std::vector<std::string> names;
  if (is_dummy()) return names;
  const auto& owner = store_->checkpoint->owner;
  for (auto item = owner.lower_bound(prefix_); item != owner.end(); ++item) {
    if (!item->first.starts_with(prefix_)) break;
    if (!store_->read.contains(item->first)) names.push_back(item->first);
  }
  return names;
}

void Weights::require_all_read() const {
  constexpr std::size_t kMaxNames = 5;
  const auto names = unread();
  if (names.empty()) return;
  std::vector<std::string> shown;
  for (const auto& name : std::span(names).first(std::min(names.size(), kMaxNames))) {
    shown.push_back(shown_name(name));
  }
  const std::string more =
      names.size() > kMaxNames ? fmt::format(" and {} more", names.size() - kMaxNames) : "";
  throw InputError("{}: {} unexpected tensor{} that the model does not have: {}{}",
                   store_->checkpoint->path.string(), names.size(), names.size() == 1 ? "" : "s",
                   fmt::join(shown, ", "), more);
}

void Weights::on_read(std::function<void(std::uint64_t bytes)> watch) {
  store_->on_read = std::move(watch);
}

std::uint64_t Weights::total_bytes() const {
  std::uint64_t bytes = 0;
  if (is_dummy()) return bytes;
  for (const TensorFile& file : store_->checkpoint->files) {
    for (const auto& [name, entry] : file.entries()) bytes += entry.end - entry.begin;
  }
  return bytes;
}

std::string Weights::hash(const std::stop_token& stop) const {
  if (is_dummy()) return fmt::format("dummy-{}", store_->seed);
  return checkpoint_hash(*store_->checkpoint, stop, user_cache_folder());
}

}  // namespace diptych
