#include "lib/tuning/find.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/folder.h"
#include "tests/tuning/support.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using test::Folder;
using testing::fp8_class;
using testing::kDevice;
using testing::refusal;

// Of a device that no table is built in for.
const TunedDevice kUnknown = {"NVIDIA Test", 9, 9};

std::string text_for(const TunedDevice& device) {
  TuningFile file;
  file.device = device;
  file.table.add(fp8_class(2, 8, Fp8Product::cutlass));
  return tuning_text(file);
}

}  // namespace

TEST_CASE("a named folder's file of the device comes first") {
  const Folder folder;
  folder.write("NVIDIA_Test.json", text_for(kUnknown));
  const Tuning tuning = find_tuning(folder.path(), kUnknown);
  REQUIRE(tuning.file != nullptr);
  CHECK(tuning.origin == (folder.path() / "NVIDIA_Test.json").string());
  CHECK(tuning.table()->find(TunedKernel::linear_fp8, {4608, 3584, 0}, 5) ==
        static_cast<int>(Fp8Product::cutlass));
  CHECK(tuning.name() == tuning.table()->hash());
  CHECK(tuning.shared_table().get() == tuning.table());
}

TEST_CASE("without a file of the device the defaults hold") {
  const Folder folder;
  folder.write("NVIDIA_Other.json", "not read");
  for (const fs::path& named : {folder.path(), fs::path()}) {
    const Tuning tuning = find_tuning(named, kUnknown);
    CHECK(tuning.file == nullptr);
    CHECK(tuning.table() == nullptr);
    CHECK(tuning.shared_table() == nullptr);
    CHECK(tuning.name() == "default");
  }
}

TEST_CASE(
    "a named folder's file comes before the built-in one, which stands in where it is missing") {
  const Folder folder;
  REQUIRE(find_tuning({}, kDevice).origin == "built in NVIDIA_H200.json");
  CHECK(find_tuning(folder.path(), kDevice).origin == "built in NVIDIA_H200.json");
  folder.write("NVIDIA_H200.json", text_for(kDevice));
  const Tuning tuning = find_tuning(folder.path(), kDevice);
  CHECK(tuning.origin == (folder.path() / "NVIDIA_H200.json").string());
  CHECK(tuning.table()->classes().size() == 1);
}

TEST_CASE("what a run says of the tuning that it found") {
  const Folder folder;
  const auto notes = [](const fs::path& named, const TunedDevice& device, std::string_view torch) {
    return tuning_notes(find_tuning(named, device), named, device, torch);
  };
  using Lines = std::vector<std::string>;
  const std::string unknown = (folder.path() / "NVIDIA_Test.json").string(),
                    h200 = (folder.path() / "NVIDIA_H200.json").string();
  const std::string usual =
      ": the usual kernels are taken; diptych tune measures which are fastest";
  CHECK(notes({}, kUnknown, "2") == Lines{"no tuning of NVIDIA Test" + usual});
  CHECK(notes(folder.path(), kUnknown, "2") == Lines{unknown + ": not there" + usual});
  const std::string measured = find_tuning({}, kDevice).file->versions.at("torch");
  CHECK(notes({}, kDevice, measured).empty());
  CHECK(notes({}, kDevice, "2") ==
        Lines{"built in NVIDIA_H200.json: was not measured with libtorch 2; diptych tune measures "
              "again"});
  CHECK(notes(folder.path(), kDevice, measured) ==
        Lines{h200 + ": not there: the built-in tuning is taken"});
  const auto built_in =
      std::ranges::find(built_in_tunings(), "NVIDIA_H200.json", &BuiltInTuning::name);
  folder.write("NVIDIA_H200.json", std::string(built_in->text));
  CHECK(notes(folder.path(), kDevice, measured).empty());
}

TEST_CASE("a GPU without a table takes that of another one with the same compute capability") {
  const TunedDevice other = {"NVIDIA Hopper", 9, 0};  // there is none of that name
  const Tuning tuning = find_tuning({}, other);
  REQUIRE(tuning.file != nullptr);
  const TunedDevice& measured = tuning.file->device;
  CHECK(measured.major == 9);
  CHECK(measured.minor == 0);
  CHECK(tuning.name() == find_tuning({}, measured).name());
  CHECK(tuning_notes(tuning, {}, other, "2") ==
        std::vector<std::string>{"no tuning of NVIDIA Hopper: that of " + measured.name +
                                 " is taken, which has the same compute capability; diptych tune "
                                 "measures this GPU"});
  CHECK(find_tuning({}, {"NVIDIA Ada", 8, 9}).file == nullptr);
}

TEST_CASE("a file of another device is refused") {
  const Folder folder;
  folder.write("NVIDIA_Test.json", text_for(kDevice));
  CHECK(refusal([&] { find_tuning(folder.path(), kUnknown); }) ==
        (folder.path() / "NVIDIA_Test.json").string() +
            ": device: found \"NVIDIA H200\", expected \"NVIDIA Test\", the device of this run");
}

TEST_CASE("what has the file's name and is none is refused, not passed over") {
  const Folder folder;
  const fs::path file = folder.path() / "NVIDIA_Test.json";
  const auto said = [&] {
    const std::string message = refusal([&] { find_tuning(folder.path(), kUnknown); });
    fs::remove(file);
    CHECK(message.starts_with(file.string() + ": "));
    return message.substr(file.string().size() + 2);
  };
  fs::create_directory(file);
  CHECK(said() == "is a folder; expected a file of diptych tune");
  fs::create_symlink("/nowhere", file);
  CHECK(said() == "No such file or directory; expected a file of diptych tune");
  fs::create_symlink(file.filename(), file);
  CHECK(said() == "Too many levels of symbolic links; expected a file of diptych tune");
  REQUIRE(mkfifo(file.c_str(), 0600) == 0);
  CHECK(said() == "is no file; expected a file of diptych tune");
  folder.write(file.filename().string(), std::string((4 << 20) + 1, ' '));
  CHECK(said() == "larger than 4 MiB, which no file of diptych tune is");
  folder.write("real.json", text_for(kUnknown));
  fs::create_symlink("real.json", file);
  CHECK(find_tuning(folder.path(), kUnknown).file != nullptr);
}

TEST_CASE("every built-in table is one of the device that its name says") {
  for (const BuiltInTuning& table : built_in_tunings()) {
    CAPTURE(table.name);
    // What device it is of stands in it; parsed for any other it would be refused.
    const auto value = [&](std::string_view key) {
      const std::string start = fmt::format("\"{}\":\"", key);
      const std::size_t begin = table.text.find(start) + start.size();
      return std::string(table.text.substr(begin, table.text.find('"', begin) - begin));
    };
    const std::string capability = value("compute_capability");
    const TunedDevice device = {value("device"), std::stoi(capability),
                                std::stoi(capability.substr(capability.find('.') + 1))};
    CHECK(tuning_file_name(device) == table.name);
    const Tuning tuning = find_tuning({}, device);
    REQUIRE(tuning.file != nullptr);
    CHECK_FALSE(tuning.table()->classes().empty());
  }
}

}  // namespace diptych
