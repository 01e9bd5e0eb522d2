// `diptych verify` from the shell: what passes, what fails by name, what cannot be replayed.
#include <fstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/tensor/safetensors.h"
#include "tests/cli/process.h"
#include "tests/cli/words.h"
#include "tests/support/skip.h"
#include "tests/verify/goldens.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using test::Outcome;
using test::run;
using test::Words;

const fs::path kGoldens = fs::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/bagel";

std::string copy_of(const char* name, const test::Folder& folder) {
  const std::string copy = folder.file(name);
  fs::copy(kGoldens / "cases" / name, copy, fs::copy_options::recursive);
  return copy;
}

// A recording whose tensors are changed: change(name, tensor).
void rewrite(const fs::path& file,
             const std::function<void(const std::string&, at::Tensor&)>& change) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  {
    const auto recorded = SafetensorsFile::open(file);
    for (const auto& [name, entry] : recorded.entries()) {
      tensors.emplace_back(name, recorded.view(name).clone());
      change(name, tensors.back().second);
    }
  }
  write_safetensors(file, tensors);
}

Outcome verify(const std::string& folder) {
  return run(Words{"verify", folder, "--model", (kGoldens / "checkpoint").string()});
}

}  // namespace

TEST_CASE("a recorded case passes, and its trace can be kept") {
  const test::Folder folder;
  const Outcome outcome = run(
      Words{"verify", (kGoldens / "cases/01_t2i_square").string(), "--trace-dir", folder.file("")});
  CHECK(outcome.code == 0);
  CHECK(outcome.out.starts_with("PASS 01_t2i_square: 110 tensors"));
  CHECK(outcome.out.ends_with("1 passed, 0 failed, 0 skipped\n"));
  const auto kept = SafetensorsFile::open(folder.file("01_t2i_square.safetensors"));
  CHECK(kept.entries().size() == 110);
}

TEST_CASE("a tensor that differs is named, with exit code 1") {
  const test::Folder folder;
  const fs::path copy = copy_of("02f_t2i_empty_prompt", folder);
  rewrite(copy / "expected.safetensors", [](const std::string& name, at::Tensor& tensor) {
    if (name == "step001.v_cond") tensor.add_(1e-3);
  });
  const Outcome outcome = verify(copy);
  CHECK(outcome.code == 1);
  CHECK(outcome.out.find("FAIL 02f_t2i_empty_prompt: 80 tensors, 1 outside") != std::string::npos);
  CHECK(outcome.out.find("first: step001.v_cond: max abs 0.001") != std::string::npos);
}

TEST_CASE("a text that differs fails, and the tensors are compared all the same") {
  const test::Folder folder;
  const fs::path copy = copy_of("05d_text_only_chat", folder);
  auto description = nlohmann::json::parse(std::ifstream(copy / "case.json"));
  const auto recorded = description["outputs"][0]["text"].get<std::string>();
  description["outputs"][0]["text"] = recorded + "!";
  std::ofstream(copy / "case.json") << description;
  fs::create_directory(folder.path() / "traces");
  const Words more = {"verify",      copy,
                      "--model",     (kGoldens / "checkpoint").string(),
                      "--trace-dir", folder.file("traces")};
  const Outcome outcome = run(more);
  CHECK(outcome.code == 1);
  CHECK(outcome.out.starts_with("FAIL 05d_text_only_chat: "));
  CHECK(outcome.out.find(" tensors, smallest cosine 1.0") != std::string::npos);
  CHECK(outcome.out.find("\n  text \"") != std::string::npos);
  CHECK(fs::exists(folder.path() / "traces/05d_text_only_chat.safetensors"));
  Words json = more;
  json.push_back("--json");
  const auto line = nlohmann::json::parse(run(json).out);
  CHECK(line["pass"] == false);
  CHECK(line["error"].get<std::string>().starts_with("text \""));
}

TEST_CASE("a written token that differs is the first divergence") {
  const test::Folder folder;
  const fs::path copy = copy_of("05d_text_only_chat", folder);
  rewrite(copy / "expected.safetensors", [](const std::string& name, at::Tensor& tensor) {
    if (name.find("token_ids") != std::string::npos) tensor.flatten()[0].add_(1);
  });
  const Outcome outcome = verify(copy);
  CHECK(outcome.code == 1);
  CHECK(outcome.out.find("  first: decode.token_ids") != std::string::npos);
}

TEST_CASE("what is wrong with a flag is said once, not case by case") {
  const auto said = [](const char* flag, const char* value) {
    const Outcome outcome = run(Words{"verify", (kGoldens / "cases").string(), flag, value});
    CHECK(outcome.code == 2);
    CHECK(outcome.out.empty());
    return outcome.err;
  };
  CHECK(said("--dtype", "zz") ==
        "diptych: --dtype: unknown value 'zz' (known: auto, float32, bfloat16)\n");
  CHECK(said("--device", "cuda:99").starts_with("diptych: --device cuda:99: "));
  CHECK(said("--attention", "zz").starts_with("diptych: --attention: unknown attention backend"));
  CHECK(said("--cfg-mode", "zz").starts_with("diptych: --cfg-mode: unknown value 'zz'"));
  CHECK(said("--cfg-mode", "auto").starts_with("diptych: --cfg-mode: found auto, expected "));
  CHECK(said("--kernels", "strict") ==
        "diptych: --kernels strict: needs a CUDA device, the run is on the CPU\n");
}

TEST_CASE("a case of two transformers and a model with one" *
          doctest::test_suite("needs goldens")) {
  const fs::path goldens = test::goldens_of("wan").back();
  if (!fs::exists(goldens / "checkpoint_a14b"))
    return test::skip("the full recordings are not here");
  const fs::path folder = goldens / "cases/t2v_a14b_lora_pair";
  CHECK(test::refusal(run(Words{"verify", folder, "-m", goldens / "checkpoint"})) ==
        (folder / "expected.safetensors").string() + ": holds weights of transformer_2, but " +
            (goldens / "checkpoint").string() + " has one transformer\n");
}

TEST_CASE("a case of another checkpoint than --model" * doctest::test_suite("needs goldens")) {
  const fs::path goldens = test::goldens_of("wan").back();
  if (!fs::exists(goldens / "checkpoint_ti2v"))
    return test::skip("the full recordings are not here");
  const auto verified = [&](const fs::path& folder, const char* checkpoint) {
    return run(Words{"verify", folder, "-m", goldens / checkpoint});
  };
  for (const char* name : {"ti2v_text_only", "vae_wan22"}) {
    const std::string folder = goldens / "cases" / name;
    CHECK(test::refusal_in_one_line(verified(folder + "/", "checkpoint"))
              .starts_with("diptych: " + folder + ": is not a case of the checkpoint " +
                           (goldens / "checkpoint").string() + " but of checkpoint_ti2v"));
  }

  // Of its own checkpoint it is a failure of the program.
  const test::Folder folder;
  const fs::path copy = folder.path() / "case";
  fs::copy(goldens / "cases/ti2v_text_only", copy);
  rewrite(copy / "inputs.safetensors", [](const std::string& name, at::Tensor& tensor) {
    if (name == "initial_latents") tensor = tensor.narrow(1, 0, 16).clone();
  });
  CHECK(verified(copy, "checkpoint_ti2v").code == 3);
  CHECK(verified(copy, "checkpoint").code == 2);
}

TEST_CASE("another checkpoint than the one that a case names is said") {
  const test::Folder folder;
  const fs::path root = folder.path(), copy = root / "cases/09_tokenizer";
  fs::create_directories(root / "cases");
  fs::copy(kGoldens / "cases/09_tokenizer", copy, fs::copy_options::recursive);
  fs::create_directory_symlink(kGoldens / "checkpoint", root / "checkpoint");
  CHECK(run(Words{"verify", copy}).err.find("not found") == std::string::npos);
  nlohmann::json description = nlohmann::json::parse(std::ifstream(copy / "case.json"));
  description["checkpoint"] = "checkpoint_b/vae";
  std::ofstream(copy / "case.json") << description;
  const auto found = run(Words{"verify", copy});
  CHECK(found.code == 0);
  CHECK(found.err.find((root / "checkpoint_b/vae").string() +
                       ": not found; cases of it are replayed with " +
                       (root / "checkpoint").string() + "\n") != std::string::npos);
}

TEST_CASE("what cannot be replayed is said") {
  const test::Folder folder;
  folder.write("l.txt", "x");
  CHECK(verify(folder.file("none")).err == "diptych: " + folder.file("none") + ": not found\n");
  CHECK(verify(folder.file("l.txt")).err ==
        "diptych: " + folder.file("l.txt") + ": is a file, expected the folder of a case\n");
  fs::remove(folder.path() / "l.txt");
  const fs::path copy = copy_of("01_t2i_square", folder);
  auto description = nlohmann::json::parse(std::ifstream(copy / "case.json"));
  SUBCASE("a task of another version") {
    description["task"] = "video_edit";
    std::ofstream(copy / "case.json") << description;
    const Outcome outcome = verify(copy);
    CHECK(outcome.code == 2);
    CHECK(outcome.err.find("task 'video_edit' is not in this version") != std::string::npos);
    // Among others it is skipped, and counted.
    const Outcome both =
        run(Words{"verify", copy, (kGoldens / "cases/02f_t2i_empty_prompt").string(), "--model",
                  (kGoldens / "checkpoint").string()});
    CHECK(both.code == 0);
    CHECK(both.out.ends_with("1 passed, 0 failed, 1 skipped\n"));
  }
  SUBCASE("folders beside cases, and a case without a task") {
    fs::create_directory(folder.path() / "00_pictures");
    description.erase("task");
    std::ofstream(copy / "case.json") << description;
    copy_of("09_tokenizer", folder);
    const Outcome outcome = verify(folder.path().string());
    CHECK(outcome.code == 0);
    CHECK(outcome.err == "[WARN ] skipped " + folder.file("00_pictures") +
                             ": has no case.json\n[WARN ] skipped " + copy.string() +
                             "/case.json: names no task\n");
    CHECK(outcome.out.ends_with("1 passed, 0 failed, 2 skipped\n"));
    CHECK(verify(copy).code == 2);
  }
  SUBCASE("links that lead nowhere beside cases and checkpoints") {
    const fs::path root = folder.path() / "root", cases = root / "cases";
    fs::create_directories(cases / "broken");
    fs::copy(kGoldens / "cases/09_tokenizer", cases / "09_tokenizer");
    fs::create_directory_symlink(kGoldens / "checkpoint", root / "checkpoint_b");
    for (const fs::path& link : {root / "loop", root / "checkpoint_a", cases / "loop",
                                 cases / "09_tokenizer/loop", cases / "broken/case.json"})
      fs::create_symlink(link.filename(), link);
    const Outcome outcome = run(Words{"verify", cases});
    CHECK(outcome.code == 1);
    CHECK(outcome.err.ends_with("replayed with " + (root / "checkpoint_b").string() + "\n"));
    CHECK(outcome.out.find("FAIL broken: " + (cases / "broken/case.json").string() +
                           ": cannot be read: Too many levels of symbolic links\n") !=
          std::string::npos);
    CHECK(outcome.out.ends_with("1 passed, 1 failed, 0 skipped\n"));
  }
  SUBCASE("nothing but what cannot be replayed") {
    description["task"] = "video_edit";
    std::ofstream(copy / "case.json") << description;
    fs::copy(copy, folder.path() / "again", fs::copy_options::recursive);
    const Outcome outcome = verify(folder.path().string());
    CHECK(outcome.code == 2);
    CHECK(outcome.out == "0 passed, 0 failed, 2 skipped\n");
    CHECK(outcome.err.ends_with("diptych: verify: no case was replayed, all were skipped\n"));
  }
  SUBCASE("a truncated description") {
    std::ofstream(copy / "case.json") << "{\"task\":\n \"t2i\"";
    CHECK(verify(copy).err ==
          "diptych: " + copy.string() + "/case.json:2:7: ends within its JSON: truncated?\n");
  }
  SUBCASE("no recorded start noise") {
    fs::remove(copy / "inputs.safetensors");
    const Outcome outcome = verify(copy);
    CHECK(outcome.code == 2);
    CHECK(outcome.out.empty());
    CHECK(outcome.err.starts_with("diptych: " + copy.string() + "/inputs.safetensors: "));
  }
  SUBCASE("a broken description") {
    description["seed"] = "forty-two";
    std::ofstream(copy / "case.json") << description;
    const Outcome outcome = verify(copy);
    CHECK(outcome.code == 2);
    CHECK(outcome.err.find("/seed: found \"forty-two\"") != std::string::npos);
  }
  SUBCASE("a number of steps that makes no update") {
    description["params"]["num_timesteps"] = 1;
    std::ofstream(copy / "case.json") << description;
    const Outcome outcome = verify(copy);
    CHECK(outcome.code == 2);
    CHECK(outcome.err == "diptych: " + copy.string() +
                             "/case.json: /params/num_timesteps: 1 makes 0 updates; expected at "
                             "least 2\n");
  }
  SUBCASE("a parameter that no request may have") {
    description["params"]["cfg_renorm_type"] = "zz";
    std::ofstream(copy / "case.json") << description;
    CHECK(verify(copy).err ==
          "diptych: " + copy.string() +
              "/case.json: /params/cfg_renorm_type: unknown value 'zz' (known: global, channel, "
              "text_channel, none)\n");
  }
  SUBCASE("no checkpoint") {
    const Outcome outcome = run(Words{"verify", copy, "--model", folder.file("nowhere")});
    CHECK(outcome.code == 2);
    CHECK(outcome.err.find("--model: ") != std::string::npos);
  }
}

}  // namespace diptych
