// The tensors of a checkpoint below a name prefix, in the released layout, on the device and in the
// dtype the run wants. Remembers what was read, so that a load can prove nothing was left over.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "lib/tensor/types.h"
#include "lib/tensor/weight_sources.h"

namespace diptych {

class Weights {
 public:
  // While it lives, get() and read() of these weights (in any scope) for a GPU return at once, and
  // several threads bring the bytes: only what get_then() hands out may be looked at or computed
  // with. finish() waits until all is there. On the CPU, and without files, it changes nothing.
  class ReadAhead {
   public:
    // Of one device; their bytes come in the order of the calls. `temporary_bytes`: of the device,
    // for tensors that only get_then() sees, or that are computed.
    explicit ReadAhead(std::vector<Weights> weights,
                       std::uint64_t temporary_bytes = std::uint64_t{256} << 20);
    explicit ReadAhead(const Weights& weights) : ReadAhead(std::vector{weights}) {}
    ~ReadAhead();  // without finish() what was asked for is not there
    ReadAhead(const ReadAhead&) = delete;
    ReadAhead& operator=(const ReadAhead&) = delete;
    void finish();  // throws as get(), and RunError where a file cannot be read

   private:
    std::vector<Weights> weights_;
  };

  // `path`: a .safetensors or .pth file, an index (*.safetensors.index.json), or a folder with a
  // .safetensors file or an index (which counts: lib/tensor/checkpoint_files.h). Opens the maps;
  // reads no tensor. Throws InputError naming the file.
  // Tensors of fp8 codes with a scale are multiplied by it. `reading`: other names, and changes
  // that are added; throws InputError where a change is of a tensor that there is not.
  static Weights open(const std::filesystem::path& path, at::Device device, at::ScalarType dtype,
                      WeightReading reading = {});
  // No file: get() makes random weights of the asked shape on the device. From two dimensions on,
  // normal with standard deviation 1/sqrt(fan in), the fan in being all dimensions but the first;
  // below, 1 + 0.1 n for tensors named "weight" and 0.1 n for all others. A tensor depends on
  // `seed`, its full name, shape, dtype and kind of device alone, not on the order of calls.
  // Changes are added to them.
  static Weights dummy(at::Device device, at::ScalarType dtype, std::uint64_t seed = 0,
                       WeightChanges changes = {});

  bool is_dummy() const;
  Weights scope(std::string_view prefix) const;  // scope("layers.3").scope("mlp"); shares the store
  Weights as(at::ScalarType dtype) const;        // the same view, loading in another dtype
  Weights on(at::Device device) const;           // the same tensors for another device
  // The same view, where the tensor without `part` in its full name stands in for a missing one
  // with it: standing_in("_gen") has "a.b_gen.c" where "a.b_gen.c" or "a.b.c" is there.
  Weights standing_in(std::string_view part) const;
  // A contiguous tensor on the device in the dtype. On the CPU, where nothing is to be converted,
  // it is a view of the read-only map, which it keeps alive: WEIGHTS MUST NEVER BE WRITTEN, a write
  // ends the process; clone() what must change. Throws InputError with the full name and the wanted
  // and found shape; missing names with the nearest known name; a stored dtype that is not the one
  // asked for, unless both are floating point (those convert).
  Tensor get(std::string_view name, at::IntArrayRef shape) const;
  // What get() returns, written to `into`: of that shape and of the dtype of options(), on any
  // device, contiguous or rows of a larger tensor. No copy of it is made on the way. Throws as
  // get().
  void read(std::string_view name, at::IntArrayRef shape, const Tensor& into) const;
  // Gives what get() returns to `use`: at once, or, within the life of a ReadAhead, as soon as it
  // is there. The tensor may be let go of behind that.
  void get_then(std::string_view name, at::IntArrayRef shape,
                std::function<void(const Tensor&)> use) const;
  at::TensorOptions options() const;  // device and dtype of what get() returns
  // Whether get() computes the tensor in float32, by a scale or changes, and then rounds it. Who
  // rounds it further asks for float32: as().
  bool is_computed(std::string_view name) const;
  // The checks of get() without the tensor: marks it as read, loads nothing. Dummy: does nothing.
  void check(std::string_view name, at::IntArrayRef shape) const;
  bool contains(std::string_view name) const;  // dummy: always true
  // Throws InputError when missing, and for dummy weights.
  std::vector<std::int64_t> shape(std::string_view name) const;
  at::ScalarType stored_dtype(std::string_view name) const;  // likewise
  std::vector<std::string> unread() const;  // full names below this prefix that get() never read
  // Throws InputError listing up to five unread tensors, unless there are none.
  void require_all_read() const;
  // Throws BadWeights naming the first stored tensor that holds NaN or infinity; reads all, slow.
  void require_finite() const;
  // Sha-256 (hex) over names, dtypes, shapes and bytes of every tensor of the checkpoint, as they
  // are stored, whatever the scope and however it is cut into files; reads all of it, slow. Dummy:
  // "dummy-<seed>". A stop that is requested meanwhile ends it early with an empty text.
  std::string hash(const std::stop_token& stop = {}) const;

  // Called with the bytes of each tensor that get() brings, for a progress line; and at once with
  // those that came while nobody watched.
  void on_read(std::function<void(std::uint64_t bytes)> watch);
  std::uint64_t total_bytes() const;  // of all tensors of the checkpoint; dummy: 0
  // The same in the dtype of options(); tensors that are no floating-point ones keep theirs.
  std::uint64_t loaded_bytes() const;

 private:
  struct Store;
  struct Lookup;
  std::string full_name(std::string_view name) const;
  // As stored, or drawn where there is no file; counts as read.
  Tensor source(std::string_view name, at::IntArrayRef shape) const;
  // What get() makes of it: in float32 where it is computed, else as it is.
  Tensor made(const std::string& full, const Tensor& stored) const;
  // Null where it is as it is stored.
  const std::vector<WeightChange>* changes_of(const std::string& full) const;
  // Ahead of the bytes: begins to read a tensor as it is stored, into `into` or, where that is
  // undefined, into memory on the device that `then` gets.
  void begin_read(const std::string& full, const Tensor& into,
                  std::function<void(const Tensor&)> then) const;
  bool reads_ahead() const;
  std::shared_ptr<Store> store_;
  std::string prefix_, stood_in_;
  at::ScalarType dtype_ = at::kFloat;
};

}  // namespace diptych
