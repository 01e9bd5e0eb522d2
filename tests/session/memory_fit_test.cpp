#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "lib/session/memory/fit.h"

namespace diptych {
namespace {

constexpr std::int64_t kGib = std::int64_t{1} << 30;

// Weights of 8 GiB, of which `units` of 1 GiB can wait in the host; a step of 2 GiB a branch of two
// where they are batched; an autoencoder of 4 GiB, or 1 in strips.
MemoryCosts toy_costs(std::int64_t units) {
  MemoryCosts costs;
  costs.plan = [](const MemoryChoice& choice, PixelSize) {
    MemoryPlan plan;
    plan.choice = choice;
    const std::int64_t away = choice.offload ? 6 - choice.offload->resident : 0;
    const std::int64_t slots = choice.offload ? choice.offload->slots : 0;
    plan.held = {{"weights", (8 - away + slots) * kGib}};
    plan.work = {{kDenoiseStepPart, (choice.batched ? 4 : 2) * kGib},
                 {"autoencoder", (choice.strips ? 1 : 4) * kGib}};
    return plan;
  };
  costs.size = {512, 512};
  costs.size_step = 16;
  costs.branches = 2;
  costs.has_strips = true;
  costs.offload = {.count = units, .bytes = units > 0 ? kGib : 0, .always_used = 0, .slots = 2};
  return costs;
}

MemoryBudget budget_of(std::int64_t gib, bool limited = false) {
  return {gib * kGib + kCudaBytes, limited, 64 * kGib};
}

std::string refusal(const MemoryCosts& costs, const MemoryWishes& wishes,
                    const MemoryBudget& budget) {
  try {
    fit_memory(costs, wishes, budget);
  } catch (const InputError& error) {
    return error.what();
  }
  return "fits";
}

TEST_CASE("choices are made in the order of what they cost") {
  const MemoryCosts costs = toy_costs(6);
  const MemoryPlan all = fit_memory(costs, {}, budget_of(12));
  CHECK(all.choice.batched);
  CHECK_FALSE(all.choice.strips);
  CHECK_FALSE(all.choice.offload.has_value());
  // Batched steps need 12 GiB; strips alone save nothing there.
  const MemoryPlan sequential = fit_memory(costs, {}, budget_of(10));
  CHECK_FALSE(sequential.choice.batched);
  CHECK(sequential.choice.strips);
  CHECK_FALSE(sequential.choice.offload.has_value());
  // Offload: batched again, and as many units on the device as there is room for.
  const MemoryPlan offloaded = fit_memory(costs, {}, budget_of(9));
  CHECK(offloaded.choice.batched);
  REQUIRE(offloaded.choice.offload.has_value());
  CHECK(offloaded.choice.offload->slots == 2);
  CHECK(offloaded.choice.offload->resident == 1);
  CHECK(offloaded.peak() == 9 * kGib);
}

TEST_CASE("what was wished for is not chosen otherwise, and the refusal says what would fit") {
  MemoryWishes wishes;
  wishes.offload = OffloadWish::none;
  wishes.batched = true;
  CHECK(refusal(toy_costs(6), wishes, budget_of(10, true)) ==
        "--max-vram: this run needs 12.8 GiB of GPU memory, 10.8 GiB are allowed; it fits with "
        "--cfg-mode sequential, or with --offload layers");
}

TEST_CASE("a model without parts that can wait in the host is never told to offload") {
  const MemoryCosts costs = toy_costs(0);
  CHECK(refusal(costs, {}, budget_of(9)) ==
        "--device cuda: this run needs 10.8 GiB of GPU memory, 9.8 GiB are free; it needs 10.8 GiB "
        "even with --vae-tiling on --cfg-mode sequential");
  MemoryWishes wishes;
  wishes.offload = OffloadWish::layers;
  CHECK(refusal(costs, wishes, budget_of(20, true)) ==
        "--offload layers: this model has no layers to offload");
}

TEST_CASE("an autoencoder that cannot work in strips is never told to") {
  MemoryCosts costs = toy_costs(0);
  costs.has_strips = false;
  MemoryWishes wishes;
  wishes.tiling = TilingWish::off;
  CHECK(refusal(costs, wishes, budget_of(9)) ==
        "--device cuda: this run needs 12.8 GiB of GPU memory, 9.8 GiB are free; it needs 12.8 GiB "
        "even with --cfg-mode sequential");
}

TEST_CASE("on the CPU the host's memory is the limit, and other forms of the weights are advised") {
  MemoryCosts costs = toy_costs(6);  // none can wait elsewhere
  const PlanFn plan = costs.plan;
  const auto form = [&](std::vector<Setting> flags, std::int64_t less) {
    costs.forms.push_back(
        {std::move(flags), [plan, less](const MemoryChoice& choice, PixelSize size) {
           MemoryPlan smaller = plan(choice, size);
           smaller.held.front().second -= less * kGib;
           return smaller;
         }});
  };
  form({Setting::of("dtype", "bfloat16")}, 4);
  form({Setting::of("quantization", "int8")}, 5);
  form({Setting::of("dtype", "bfloat16"), Setting::of("quantization", "int8")}, 6);
  const auto host = [](std::int64_t gib) { return MemoryBudget{std::nullopt, false, gib * kGib}; };
  CHECK(refusal(costs, {}, host(12)) == "fits");
  CHECK(fit_memory(costs, {}, host(12)).choice.batched);  // nothing is chosen
  CHECK(refusal(costs, {}, {}) == "fits");                // nobody knows
  const std::string begin = "--device cpu: this run needs 12.0 GiB of memory, ";
  CHECK(refusal(costs, {}, host(11)) ==
        begin +
            "11.0 GiB are available; it fits with --dtype bfloat16, or with --quantization "
            "int8, or with --dtype bfloat16 --quantization int8");
  CHECK(refusal(costs, {}, host(7)) ==
        begin +
            "7.0 GiB are available; it fits with --quantization int8, or with --dtype bfloat16 "
            "--quantization int8");
  CHECK(refusal(costs, {}, host(4)) ==
        begin +
            "4.0 GiB are available; it fits with --vae-tiling on --cfg-mode sequential --dtype "
            "bfloat16 --quantization int8");
  CHECK(refusal(costs, {}, host(3)) ==
        begin +
            "3.0 GiB are available; it needs 4.0 GiB even with --vae-tiling on --cfg-mode "
            "sequential --dtype bfloat16 --quantization int8");
  CHECK(refit_memory(costs, {}, host(12), {}).peak() == 12 * kGib);
  CHECK_THROWS_AS(refit_memory(costs, {}, host(11), {}), InputError);
}

TEST_CASE("where nothing is offloaded, the plan of the loading is that of the run") {
  const MemoryCosts costs = toy_costs(6);
  const auto same = [&](const MemoryWishes& wishes, const MemoryBudget& budget) {
    const MemoryPlan loading = fit_memory(costs, wishes, budget);
    if (loading.choice.offload) return false;
    const MemoryPlan run = refit_memory(costs, wishes, budget, loading.choice.offload);
    CHECK(run.choice.batched == loading.choice.batched);
    CHECK(run.choice.strips == loading.choice.strips);
    CHECK_FALSE(run.choice.offload.has_value());
    CHECK(run.peak() == loading.peak());
    return true;
  };
  CHECK(same({}, budget_of(12)));
  CHECK(same({}, budget_of(11)));  // batched does not fit
  CHECK(same({}, budget_of(10)));
  CHECK_FALSE(same({}, budget_of(9)));  // some units wait in the host
  MemoryWishes wishes;
  wishes.batched = false;
  CHECK(same(wishes, budget_of(11)));
  wishes = {};
  wishes.tiling = TilingWish::on;
  CHECK(same(wishes, budget_of(12)));
}

TEST_CASE("once the weights are loaded, they stay where they are") {
  const MemoryCosts costs = toy_costs(6);
  const OffloadChoice offload{.resident = 2, .slots = 2};
  const MemoryPlan plan = refit_memory(costs, {}, budget_of(10), offload);
  CHECK(plan.choice.offload->resident == 2);
  CHECK(plan.choice.batched);
  CHECK_THROWS_AS(refit_memory(costs, {}, budget_of(6), offload), InputError);
}

}  // namespace
}  // namespace diptych
