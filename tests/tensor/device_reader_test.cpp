#include "lib/tensor/device_reader.h"

#include "lib/tensor/safetensors.h"
#include "tests/support/peak_bytes.h"
#include "tests/tensor/support.h"

namespace diptych {
namespace {

constexpr std::uint64_t kMost = std::uint64_t{1} << 28;

// More than two pieces of 4 MiB, and no multiple of one.
Tensor large() {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  return at::randn({3'000'017}, generator);
}

SafetensorsFile write_and_open(const std::filesystem::path& path) {
  write_safetensors(path, std::vector<std::pair<std::string, Tensor>>{
                              {"large", large()},
                              {"small", at::arange(7, at::kByte)},
                              {"none", at::empty({0, 3})},
                              {"half", at::arange(12, at::kFloat).view({3, 4}).to(at::kBFloat16)}});
  return SafetensorsFile::open(path);
}

const TensorEntry& entry(const SafetensorsFile& file, std::string_view name) {
  return file.entries().find(name)->second;
}

TEST_CASE("DeviceReader: every byte arrives, and what comes then comes in order") {
  const test::Folder folder;
  const SafetensorsFile file = write_and_open(folder / "m.safetensors");
  const Tensor packed = at::full({5, 4}, -1, at::kBFloat16);
  std::vector<std::string> order;
  std::map<std::string, Tensor> read;
  {
    DeviceReader reader(at::kCPU, kMost);
    for (const char* name : {"large", "small", "none"}) {
      read[name] = at::empty(entry(file, name).shape, entry(file, name).dtype);
      reader.read(file, entry(file, name), read[name], [&, name](const Tensor& tensor) {
        order.push_back(name);
        CHECK(tensor.is_same(read[name]));
      });
    }
    reader.read(file, entry(file, "half"), packed.narrow(0, 1, 3),
                [&](const Tensor&) { order.push_back("half"); });
    reader.finish();
    CHECK(order == std::vector<std::string>{"large", "small", "none", "half"});
    reader.finish();  // nothing is left
  }
  for (const auto& [name, value] : read) CHECK(equal_bits(value, file.view(name)));
  CHECK(equal_bits(packed.narrow(0, 1, 3), file.view("half")));
  CHECK(packed[0].eq(-1).all().item<bool>());
  CHECK(packed[4].eq(-1).all().item<bool>());
}

TEST_CASE("DeviceReader: temporary tensors have memory one behind the other") {
  const test::Folder folder;
  const SafetensorsFile file = write_and_open(folder / "m.safetensors");
  std::vector<std::string> order;
  DeviceReader reader(at::kCPU, /*most_temporary_bytes=*/1);
  const auto check = [&](const char* name) {
    return [&, name](const Tensor& tensor) {
      order.push_back(name);
      CHECK(equal_bits(tensor, file.view(name)));
    };
  };
  const Tensor small = at::zeros({7}, at::kByte);
  for (const char* name : {"large", "half", "none", "large", "small"}) {
    const bool is_small = name == std::string_view("small");
    reader.read(file, entry(file, name), is_small ? small : Tensor(), check(name));
  }
  reader.finish();
  CHECK(order == std::vector<std::string>{"large", "half", "none", "large", "small"});
  const auto most_of_three = [&](std::uint64_t most_bytes) {
    return peak_bytes([&] {
      DeviceReader other(at::kCPU, most_bytes);
      for (int i = 0; i < 3; ++i) other.read(file, entry(file, "large"), {}, {});
      other.finish();
    });
  };
  const std::int64_t one = 3'000'017 * 4;
  CHECK(most_of_three(1) < 2 * one);
  CHECK(most_of_three(100'000'000) >= 2 * one);
}

TEST_CASE("DeviceReader: a file that has become shorter is named, whatever is asked for next") {
  const test::Folder folder;
  const auto path = folder / "m.safetensors";
  const SafetensorsFile file = write_and_open(path);
  std::filesystem::resize_file(path, 6'000'000);
  DeviceReader reader(at::kCPU, kMost);
  const Tensor into = at::empty({3'000'017});
  bool ran = false;
  reader.read(file, entry(file, "large"), into, [&](const Tensor&) { ran = true; });
  std::string text;
  try {
    reader.finish();
  } catch (const RunError& error) {
    text = error.what();
  }
  CHECK(text.starts_with(path.string() + ": has become shorter while it was read: 6000000 bytes "
                                         "now, 12"));
  CHECK_FALSE(ran);
  CHECK_THROWS_AS(reader.read(file, entry(file, "small"), at::empty({7}, at::kByte), {}), RunError);
}

TEST_CASE("DeviceReader: one that is given up leaves nothing behind that writes") {
  const test::Folder folder;
  const SafetensorsFile file = write_and_open(folder / "m.safetensors");
  const Tensor into = at::zeros({3'000'017});
  {
    DeviceReader reader(at::kCPU, kMost);
    reader.read(file, entry(file, "large"), into, [](const Tensor&) { FAIL("given up"); });
  }
  const Tensor left = into.clone();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(equal_bits(into, left));
}

}  // namespace
}  // namespace diptych
