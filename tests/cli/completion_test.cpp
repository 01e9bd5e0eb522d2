// Completion scripts: they know every flag, and the shells that are here take them.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/cli/process.h"
#include "tests/cli/words.h"

namespace diptych {
namespace {

using test::run;
using test::Words;

// What bash offers after this line, one candidate a line.
std::string offered(const test::Folder& folder, const std::string& words, int index) {
  folder.write("complete.sh", run(Words{"completion", "bash"}).out + "COMP_WORDS=(" + words +
                                  ")\nCOMP_CWORD=" + std::to_string(index) +
                                  "\n_diptych\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n");
  const std::string command = "bash " + folder.file("complete.sh") + " > " + folder.file("out");
  if (std::system(command.c_str()) != 0) return "bash failed";
  std::string text;
  FILE* file = std::fopen(folder.file("out").c_str(), "rb");
  for (int letter = std::fgetc(file); letter != EOF; letter = std::fgetc(file)) {
    text += static_cast<char>(letter);
  }
  std::fclose(file);
  return text;
}

TEST_CASE("every shell's script knows the verbs and the flags") {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const auto outcome = run(Words{"completion", shell});
    CHECK(outcome.code == 0);
    for (const char* word : {"generate", "batch", "bench", "verify", "resume", "replay",
                             "timestep-shift", "flow-shift", "sequential"}) {
      CAPTURE(word);
      CHECK(outcome.out.find(word) != std::string::npos);
    }
  }
}

TEST_CASE("bash completes verbs, flags and values") {
  const test::Folder folder;
  CHECK(offered(folder, "diptych gen", 1) == "generate\n");
  CHECK(offered(folder, "diptych generate --cfg-i", 2) == "--cfg-img-scale\n--cfg-interval\n");
  CHECK(offered(folder, "diptych generate --cfg-mode s", 3) == "sequential\n");
  CHECK(offered(folder, "diptych generate --cfg-mode ''", 3) == "batched\nsequential\nauto\n");
  CHECK(offered(folder, "diptych completion --log-level w", 3) == "warning\n");
}

TEST_CASE("bash completes behind shared flags, after = and where a verb wants a word") {
  const test::Folder folder;
  CHECK(offered(folder, "diptych -v gen", 2) == "generate\n");
  CHECK(offered(folder, "diptych --log-level d", 2) == "debug\n");
  CHECK(offered(folder, "diptych --log-level debug gen", 3) == "generate\n");
  CHECK(offered(folder, "diptych --log-level = debug gen", 4) == "generate\n");
  CHECK(offered(folder, "diptych --log-level=debug gen", 2) == "generate\n");
  CHECK(offered(folder, "diptych --verb", 1) == "--verbose\n");
  CHECK(offered(folder, "diptych -q generate --cfg-i", 3) == "--cfg-img-scale\n--cfg-interval\n");
  // The = is a word of its own where COMP_WORDBREAKS has it, as it has in bash by default.
  CHECK(offered(folder, "diptych generate --cfg-mode = s", 4) == "sequential\n");
  CHECK(offered(folder, "diptych generate --cfg-mode = ", 3) == "batched\nsequential\nauto\n");
  CHECK(offered(folder, "diptych generate --cfg-mode=s", 2) == "--cfg-mode=sequential\n");
  CHECK(offered(folder, "diptych completion ''", 2) == "bash\nzsh\nfish\n");
  CHECK(offered(folder, "diptych completion f", 2) == "fish\n");
  CHECK(offered(folder, "diptych help insp", 2) == "inspect\n");
}

TEST_CASE("bash offers no placeholders, and names with blanks as one word each") {
  const test::Folder folder;
  CHECK(offered(folder, "diptych generate --device c", 3) == "cpu\ncuda\n");
  CHECK(offered(folder, "diptych generate --ulysses-degree ''", 3) == "auto\n");
  std::filesystem::create_directory(folder.path() / "in");
  for (const char* name : {"in/my cat.png", "in/my * dog.png"}) folder.write(name, "");
  const std::string my = folder.file("in/my"), files = my + " * dog.png\n" + my + " cat.png\n";
  for (const char* flag : {"--image", "--lora"}) {
    CAPTURE(flag);
    const std::string text = offered(folder, std::string("diptych generate ") + flag + " " + my, 3);
    CHECK((text == files || text == my + " cat.png\n" + my + " * dog.png\n"));
  }
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = run(Words{"completion", shell}).out;
    CHECK(script.find("cuda:N") == std::string::npos);
    CHECK(script.find("FILE[:SCALE]") == std::string::npos);
  }
}

}  // namespace
}  // namespace diptych
