#include "lib/session/rehearsal.h"

#include <stdexcept>

#include <doctest/doctest.h>

namespace diptych {
namespace {

const FirstRun kWhole{.is_known = true,
                      .reads_files = true,
                      .paints_at_once = true,
                      .is_alone = true,
                      .has_cfg_mode = true,
                      .captures_steps = true,
                      .keeps_steps_fits = true};

std::string without_numbers(std::string text) {
  std::erase_if(text, [](char c) { return (c >= '0' && c <= '9') || c == '.'; });
  return text;
}

TEST_CASE("a run is rehearsed on a GPU where all that it takes is known") {
  const at::Device gpu(at::kCUDA, 0);
  CHECK(!why_not_rehearsed(kWhole, gpu, {}));
  CHECK(why_not_rehearsed(kWhole, at::kCPU, {}) == "the run is on the CPU");
  MemoryBudget limited;
  limited.limited = true;
  CHECK(why_not_rehearsed(kWhole, gpu, limited) == "--max-vram");
  for (bool FirstRun::*const needed :
       {&FirstRun::is_known, &FirstRun::reads_files, &FirstRun::paints_at_once, &FirstRun::is_alone,
        &FirstRun::has_cfg_mode, &FirstRun::captures_steps, &FirstRun::keeps_steps_fits}) {
    FirstRun lacking = kWhole;
    lacking.*needed = false;
    CHECK(why_not_rehearsed(lacking, gpu, {}));
  }
}

TEST_CASE("parts run in order, and a wait for the first ones leaves the last one running") {
  std::string done;
  std::mutex last;
  last.lock();
  Rehearsal rehearsal;
  rehearsal.start({{"a", [&] { done += "a"; }},
                   {"b", [&] { done += "b"; }},
                   {"c", [&] {
                      const std::lock_guard wait(last);
                      done += "c";
                    }}});
  CHECK(rehearsal.wait(2));
  CHECK(done == "ab");
  last.unlock();
  CHECK(without_numbers(rehearsal.finish()) == "rehearsed a s, b s, c s");
  CHECK(done == "abc");
  CHECK(rehearsal.finish().empty());
  CHECK(!rehearsal.wait(3));
}

TEST_CASE("a part that fails ends the rehearsal, and no wait hangs") {
  std::string done;
  Rehearsal rehearsal;
  rehearsal.start({{"a", [&] { done += "a"; }},
                   {"b", [] { throw std::runtime_error("no such kernel"); }},
                   {"c", [&] { done += "c"; }}});
  CHECK(!rehearsal.wait(2));
  CHECK(rehearsal.wait(1));
  CHECK(without_numbers(rehearsal.finish()) ==
        "the rehearsal of b failed: no such kernel; rehearsed a s");
  CHECK(done == "a");
}

TEST_CASE("without a start there is nothing to wait for") {
  Rehearsal rehearsal;
  CHECK(!rehearsal.wait(0));
  CHECK(rehearsal.finish().empty());
}

}  // namespace
}  // namespace diptych
