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
#include "lib/tensor/stored_tensors.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {

struct Weights::Store {
  at::Device device;
  std::optional<CheckpointFiles> checkpoint;  // nullopt: dummy weights
  WeightSources sources{};
  WeightReading reading{};
  std::uint64_t seed = 0;
  std::set<std::string, std::less<>> read{};  // full names
  std::function<void(std::uint64_t bytes)> on_read{};
  std::uint64_t unseen_bytes = 0;          // read while nobody watched
  std::shared_ptr<DeviceReader> reader{};  // within the life of a ReadAhead

  void count(std::uint64_t bytes) {
    if (on_read) return on_read(bytes);
    unseen_bytes += bytes;
  }
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

// A tensor of the model in the file that holds it.
struct Found {
  const TensorFile& file;
  const TensorEntry& entry;
  const WeightSource& source;
};

// What the files call a tensor of the model that they lack.
std::string stored_name(const WeightReading& reading, const std::string& name) {
  const auto found = std::ranges::find(reading.names, name, [](const auto& e) { return e.second; });
  return reading.prefix + (found == reading.names.end() ? name : found->first);
}

void check_entry(const Found& found, at::IntArrayRef shape, at::ScalarType dtype) {
  const auto& [file, entry, source] = found;
  if (at::IntArrayRef(entry.shape) != shape) {
    throw InputError("{}: tensor {} has shape {}, expected {}", file.path().string(),
                     shown_name(source.stored), shown_shape(entry.shape), shown_shape(shape));
  }
  // Between floating-point types a conversion is rounding; any other one would be a guess.
  const bool converts = at::isFloatingType(entry.dtype) && at::isFloatingType(dtype);
  if (entry.dtype != dtype && !converts) {
    throw InputError("{}: tensor {} has dtype {}, expected {}", file.path().string(),
                     shown_name(source.stored), dtype_name(entry.dtype),
                     at::isFloatingType(dtype) ? "a floating-point one" : dtype_name(dtype));
  }
}

void expect_sequential_reads(const CheckpointFiles& checkpoint, bool sequential) {
  for (const TensorFile& file : checkpoint.files) file.expect_sequential_reads(sequential);
}

}  // namespace

// The store is what its members make of a name.
struct Weights::Lookup {
  const Store& store;

  bool has(const std::string& name) const { return store.sources.contains(name); }
  // Throws with the nearest name where it is missing.
  Found find(const std::string& name) const {
    const CheckpointFiles& checkpoint = *store.checkpoint;
    if (const auto known = store.sources.find(name); known != store.sources.end()) {
      const TensorFile& file = checkpoint.files[known->second.file];
      return {file, file.entries().find(known->second.stored)->second, known->second};
    }
    const std::string wanted = stored_name(store.reading, name);
    NearestName nearest(wanted);
    for (const auto& [candidate, source] : store.sources) nearest.offer(source.stored);
    const std::string& best = nearest.best();
    throw InputError("{}: tensor {} is missing{}", checkpoint.path.string(), shown_name(wanted),
                     best.empty() ? "" : fmt::format("; the nearest name is {}", shown_name(best)));
  }
};

Weights Weights::open(const std::filesystem::path& path, at::Device device, at::ScalarType dtype,
                      WeightReading reading) {
  Weights weights;
  weights.store_ = std::make_shared<Store>(Store{device, open_checkpoint(path)});
  Store& store = *weights.store_;
  store.sources = weight_sources(*store.checkpoint, reading);
  store.reading = std::move(reading);
  weights.dtype_ = dtype;
  for (const auto& [name, changes] : store.reading.changes) Lookup{store}.find(name);
  // For a device every byte is read once; on the CPU most tensors stay views of the
  // map.
  expect_sequential_reads(*store.checkpoint, !device.is_cpu());
  return weights;
}

Weights Weights::dummy(at::Device device, at::ScalarType dtype, std::uint64_t seed,
                       WeightChanges changes) {
  Weights weights;
  weights.store_ = std::make_shared<Store>(Store{device, std::nullopt, {}, {}, seed});
  weights.store_->reading.changes = std::move(changes);
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

Weights Weights::on(at::Device device) const {
  Weights other = *this;
  const Store& store = *store_;
  other.store_ = std::make_shared<Store>(
      Store{device, store.checkpoint, store.sources, store.reading, store.seed});
  return other;
}

Weights Weights::standing_in(std::string_view part) const {
  Weights other = *this;
  other.stood_in_ = part;
  return other;
}

std::string Weights::full_name(std::string_view name) const {
  std::string full = fmt::format("{}{}", prefix_, name);
  if (stood_in_.empty() || is_dummy() || store_->sources.contains(full)) return full;
  const std::size_t at = full.find(stood_in_);
  if (at == std::string::npos) return full;
  std::string other = full;
  other.erase(at, stood_in_.size());
  return store_->sources.contains(other) ? other : full;
}

at::TensorOptions Weights::options() const {
  return at::TensorOptions().device(store_->device).dtype(dtype_);
}

Tensor Weights::source(std::string_view name, at::IntArrayRef shape) const {
  const std::string full = full_name(name);
  if (is_dummy()) return random_weight(store_->seed, full, shape, options());
  check_interrupted();  // a load of gigabytes stops at the next tensor
  check(name, shape);
  const auto [file, entry, source] = Lookup{*store_}.find(full);
  store_->count(entry.end - entry.begin);
  return file.view(source.stored);
}

// Nothing for a tensor that is not computed.
const std::vector<WeightChange>* Weights::changes_of(const std::string& full) const {
  static const std::vector<WeightChange> kNone;
  const WeightChanges& changes = store_->reading.changes;
  if (const auto found = changes.find(full); found != changes.end()) return &found->second;
  const auto source = store_->sources.find(full);
  const bool scaled = source != store_->sources.end() && source->second.scale.defined();
  return scaled ? &kNone : nullptr;
}

Tensor Weights::made(const std::string& full, const Tensor& stored) const {
  const std::vector<WeightChange>* changes = changes_of(full);
  if (changes == nullptr) return stored;
  const auto source = store_->sources.find(full);
  return computed_weight(stored, source == store_->sources.end() ? Tensor() : source->second.scale,
                         *changes, store_->device);
}

bool Weights::is_computed(std::string_view name) const {
  return changes_of(full_name(name)) != nullptr;
}

Tensor Weights::get(std::string_view name, at::IntArrayRef shape) const {
  if (!reads_ahead()) return made(full_name(name), source(name, shape)).to(store_->device, dtype_);
  Tensor wanted = at::empty(shape, options());
  read(name, shape, wanted);
  return wanted;
}

void Weights::read(std::string_view name, at::IntArrayRef shape, const Tensor& into) const {
  TORCH_CHECK(into.sizes() == shape && into.scalar_type() == dtype_, "[weights] ", name,
              " of shape ", shape, " and dtype ", dtype_, " into ", into.sizes(), " of ",
              into.scalar_type());
  const std::string full = full_name(name);
  if (!reads_ahead()) {
    into.copy_(made(full, source(name, shape)));
    return;
  }
  check(name, shape);
  const TensorEntry& entry = Lookup{*store_}.find(full).entry;
  const bool as_it_is = entry.dtype == dtype_ && changes_of(full) == nullptr;
  if (as_it_is && into.is_contiguous()) return begin_read(full, into, {});
  begin_read(full, {}, [self = *this, full, into](const Tensor& stored) {
    into.copy_(self.made(full, stored));
  });
}

void Weights::get_then(std::string_view name, at::IntArrayRef shape,
                       std::function<void(const Tensor&)> use) const {
  if (!reads_ahead()) return use(get(name, shape));
  check(name, shape);
  const std::string full = full_name(name);
  begin_read(full, {}, [self = *this, full, use = std::move(use)](const Tensor& stored) {
    use(self.made(full, stored).to(self.dtype_));
  });
}

bool Weights::reads_ahead() const {
  return store_->reader != nullptr;
}

void Weights::begin_read(const std::string& full, const Tensor& into,
                         std::function<void(const Tensor&)> then) const {
  check_interrupted();
  const auto [file, entry, source] = Lookup{*store_}.find(full);
  const std::uint64_t bytes = entry.end - entry.begin;
  // The store outlives its reader, which calls this.
  const auto arrived = [store = store_.get(), bytes, then = std::move(then)](const Tensor& stored) {
    if (then) then(stored);
    store->count(bytes);
  };
  store_->reader->read(file, entry, into, arrived);
}

Weights::ReadAhead::ReadAhead(std::vector<Weights> weights, std::uint64_t temporary_bytes)
    : weights_(std::move(weights)) {
  std::shared_ptr<DeviceReader> reader;
  for (const Weights& each : weights_) {
    Store& store = *each.store_;
    TORCH_CHECK(store.reader == nullptr, "[weights] read ahead twice");
    if (each.is_dummy() || store.device.is_cpu()) continue;
    if (reader == nullptr) reader = std::make_shared<DeviceReader>(store.device, temporary_bytes);
    store.reader = reader;
  }
}

Weights::ReadAhead::~ReadAhead() {
  for (const Weights& each : weights_) each.store_->reader.reset();
}

void Weights::ReadAhead::finish() {
  for (const Weights& each : weights_)
    if (each.reads_ahead()) each.store_->reader->finish();
}

void Weights::check(std::string_view name, at::IntArrayRef shape) const {
  if (is_dummy()) return;
  const std::string full = full_name(name);
  check_entry(Lookup{*store_}.find(full), shape, dtype_);
  store_->read.insert(full);
}

bool Weights::contains(std::string_view name) const {
  return is_dummy() || store_->sources.contains(full_name(name));
}

std::vector<std::int64_t> Weights::shape(std::string_view name) const {
  const std::string full = full_name(name);
  if (is_dummy()) {
    throw InputError("dummy weights: the shape of {} is not known; it must come from the config",
                     shown_name(full));
  }
  return Lookup{*store_}.find(full).entry.shape;
}

at::ScalarType Weights::stored_dtype(std::string_view name) const {
  const std::string full = full_name(name);
  if (is_dummy()) throw InputError("dummy weights: the dtype of {} is not known", shown_name(full));
  return Lookup{*store_}.find(full).entry.dtype;
}

std::vector<std::string> Weights::unread() const {
  std::vector<std::string> names;
  if (is_dummy()) return names;
  const WeightSources& sources = store_->sources;
  for (auto item = sources.lower_bound(prefix_); item != sources.end(); ++item) {
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
    shown.push_back(shown_name(store_->sources.at(name).stored));
  }
  const std::string more =
      names.size() > kMaxNames ? fmt::format(" and {} more", names.size() - kMaxNames) : "";
  throw InputError("{}: {} unexpected tensor{} that the model does not have: {}{}",
                   store_->checkpoint->path.string(), names.size(), names.size() == 1 ? "" : "s",
                   fmt::join(shown, ", "), more);
}

void Weights::on_read(std::function<void(std::uint64_t bytes)> watch) {
  store_->on_read = std::move(watch);
  if (store_->on_read) store_->on_read(std::exchange(store_->unseen_bytes, 0));
}

std::uint64_t Weights::total_bytes() const {
  std::uint64_t bytes = 0;
  if (is_dummy()) return bytes;
  for (const TensorFile& file : store_->checkpoint->files) {
    for (const auto& [name, entry] : file.entries()) bytes += entry.end - entry.begin;
  }
  return bytes;
}

std::uint64_t Weights::loaded_bytes() const {
  std::uint64_t bytes = 0;
  if (is_dummy()) return bytes;
  for (const TensorFile& file : store_->checkpoint->files) {
    for (const auto& [name, entry] : file.entries()) {
      const std::uint64_t stored = entry.end - entry.begin;
      bytes += at::isFloatingType(entry.dtype)
                   ? stored / c10::elementSize(entry.dtype) * c10::elementSize(dtype_)
                   : stored;
    }
  }
  return bytes;
}

void Weights::require_finite() const {
  if (!is_dummy()) diptych::require_finite(*store_->checkpoint);
}

std::string Weights::hash(const std::stop_token& stop) const {
  if (is_dummy()) return fmt::format("dummy-{}", store_->seed);
  return checkpoint_hash(*store_->checkpoint, stop, user_cache_folder());
}

}  // namespace diptych
