#include "lib/session/memory/fit.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"

namespace diptych {
namespace {

enum class Keep { everything, what_fits, nothing };  // of the units, on the device

struct Way {
  MemoryChoice choice;  // but for `offload`, which follows from `keep`
  Keep keep = Keep::everything;
  const WeightForm* form = nullptr;  // null: as they are asked for
};

struct Fitter {
  const MemoryCosts& costs;
  PixelSize size;
  std::int64_t available;            // bytes for tensors
  std::int64_t beside = kCudaBytes;  // what the process takes more

  bool fits(const MemoryPlan& plan) const { return plan.peak() <= available; }
  MemoryPlan plan(const Way& way) const {
    const PlanFn& plan_with = way.form == nullptr ? costs.plan : way.form->plan;
    MemoryChoice choice = way.choice;
    if (way.keep != Keep::everything)
      choice.offload = {.resident = 0, .slots = costs.offload.slots};
    const MemoryPlan plan = plan_with(choice, size);
    if (way.keep != Keep::what_fits || !fits(plan)) return plan;
    choice.offload = fill_up(available - plan.peak());
    return plan_with(choice, size);
  }

 private:
  // As many units on the device as there is room for.
  OffloadChoice fill_up(std::int64_t bytes) const {
    const OffloadUnits& units = costs.offload;
    OffloadChoice offload{.resident = 0, .slots = units.slots};
    const std::int64_t room = bytes / units.bytes + offload.slots;
    if (room - 2 >= units.always_used) offload.slots = 2;
    offload.resident = std::min(room - offload.slots, units.count);
    return offload;
  }
};

// In the order of what they cost. Where weights are brought to the device guidance stays batched,
// if it can: one branch after the other would bring them once for each.
std::vector<Way> ways_to_try(const MemoryWishes& wishes, const MemoryCosts& costs, bool limited) {
  std::vector<MemoryChoice> choices = {
      {wishes.batched.value_or(true), wishes.tiling == TilingWish::on, {}}};
  if (wishes.tiling == TilingWish::automatic) {
    choices.push_back(choices.back());
    choices.back().strips = true;
  }
  const MemoryChoice batched = choices.back();
  if (!wishes.batched && costs.branches > 1) {
    choices.push_back(batched);
    choices.back().batched = false;
  }
  std::vector<Way> ways;
  const Keep asked = limited ? Keep::what_fits : Keep::nothing;
  const Keep first = wishes.offload == OffloadWish::layers ? asked : Keep::everything;
  for (const MemoryChoice& choice : choices) ways.push_back({choice, first});
  if (wishes.offload == OffloadWish::automatic && costs.offload.count > 0) {
    ways.push_back({batched, Keep::what_fits});
    ways.push_back({choices.back(), Keep::what_fits});
  }
  return ways;
}

void check_host(const MemoryPlan& memory, const MemoryBudget& budget) {
  if (!budget.host || memory.host <= *budget.host) return;
  throw InputError(Setting::of("offload", "layers"),
                   "needs {:.1f} GiB of host memory for the layers that are not on the GPU, "
                   "{:.1f} GiB are available; a larger --max-vram keeps more of them there",
                   to_gib(memory.host), to_gib(*budget.host));
}

// Flags that save memory, and what they change.
struct Saving {
  std::vector<Setting> flags;
  std::function<void(Way& way)> apply;
  bool is_form = false;  // of the weights, which have one
};
using Savings = std::vector<Saving>;

// "--vae-tiling on --offload layers", behind `text`.
void add_flags(SettingText& text, const Savings& savings) {
  bool first = true;
  for (const Saving& saving : savings) {
    for (const Setting& flag : saving.flags) {
      if (!std::exchange(first, false)) text.emplace_back(" ");
      text.emplace_back(flag);
    }
  }
}

Saving form_saving(const WeightForm& form) {
  return {form.flags, [&form](Way& way) { way.form = &form; }, true};
}

Savings savings_left(const Way& way, const MemoryCosts& costs) {
  Savings savings;
  if (!way.choice.strips && costs.has_strips) {
    savings.push_back({{Setting::of("vae_tiling", "on")}, [](Way& w) { w.choice.strips = true; }});
  }
  if (way.choice.batched && costs.branches > 1) {
    savings.push_back(
        {{Setting::of("cfg_mode", "sequential")}, [](Way& w) { w.choice.batched = false; }});
  }
  if (way.keep == Keep::everything && costs.offload.count > 0) {
    savings.push_back({{Setting::of("offload", "layers")}, [](Way& w) { w.keep = Keep::nothing; }});
  }
  return savings;
}

// Every smallest set of savings that is enough: "--vae-tiling on, or with --offload layers".
SettingText enough_flags(const Fitter& fitter, const Way& way) {
  Savings savings = savings_left(way, fitter.costs);
  for (const WeightForm& form : fitter.costs.forms) savings.push_back(form_saving(form));
  for (std::size_t size = 1; size <= savings.size(); ++size) {
    SettingText found;
    for (std::size_t set = 1; set < std::size_t{1} << savings.size(); ++set) {
      Way tried = way;
      Savings flags;
      for (std::size_t i = 0; i < savings.size(); ++i) {
        if ((set >> i & 1) == 0) continue;
        savings[i].apply(tried);
        flags.push_back(savings[i]);
      }
      if (std::ranges::count_if(flags, &Saving::is_form) > 1) continue;
      if (flags.size() == size && fitter.fits(fitter.plan(tried))) {
        if (!found.empty()) found.emplace_back(", or with ");
        add_flags(found, flags);
      }
    }
    if (!found.empty()) return found;
  }
  return {};
}

// The largest picture of about the same shape that fits, "WxH"; empty where none does.
std::string smaller_size(const Fitter& fitter, const Way& way) {
  const std::int64_t step = fitter.costs.size_step;
  const PixelSize& size = fitter.size;
  for (std::int64_t columns = size.width / step - 1; columns > 0; --columns) {
    const std::int64_t rows = std::max(columns * size.height / size.width, std::int64_t{1});
    const PixelSize tried = {columns * step, rows * step};
    const Fitter smaller{fitter.costs, tried, fitter.available, fitter.beside};
    if (smaller.fits(smaller.plan(way))) return fmt::format("{}x{}", tried.width, tried.height);
  }
  return {};
}

// Null where none saves anything.
const WeightForm* smallest_form(const Fitter& fitter, const Way& way) {
  const WeightForm* smallest = nullptr;
  std::int64_t least = fitter.plan(way).peak();
  for (const WeightForm& form : fitter.costs.forms) {
    Way tried = way;
    tried.form = &form;
    const std::int64_t bytes = fitter.plan(tried).peak();
    if (bytes >= least) continue;
    least = bytes;
    smallest = &form;
  }
  return smallest;
}

void add_advice(SettingText& text, const Fitter& fitter, const Way& way) {
  if (const SettingText flags = enough_flags(fitter, way); !flags.empty()) {
    text.emplace_back("it fits with ");
    text.insert(text.end(), flags.begin(), flags.end());
    return;
  }
  const bool offloads = fitter.costs.offload.count > 0;
  Way least{{false, fitter.costs.has_strips, {}}, offloads ? Keep::nothing : Keep::everything};
  // All that this work can do with.
  Savings savings = savings_left({{true, false, {}}, Keep::everything}, fitter.costs);
  if (const WeightForm* form = smallest_form(fitter, least)) {
    least.form = form;
    savings.push_back(form_saving(*form));
  }
  if (const std::string size = smaller_size(fitter, least); !size.empty()) {
    text.insert(text.end(), {"it fits with ", Setting::of("size", size), " "});
  } else {
    text.emplace_back(fmt::format("it needs {:.1f} GiB even with ",
                                  to_gib(fitter.plan(least).peak() + fitter.beside)));
  }
  add_flags(text, savings);
}

// On the CPU, where nothing is chosen, and there is no other place for weights.
MemoryPlan fit_into_host(MemoryCosts costs, const Way& way, const MemoryBudget& budget) {
  costs.offload = {};
  constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max();
  const Fitter fitter{costs, costs.size, budget.host.value_or(kUnknown), 0};
  MemoryPlan plan = fitter.plan(way);
  if (fitter.fits(plan)) return plan;
  SettingText text = {fmt::format("this run needs {:.1f} GiB of memory, {:.1f} GiB are available; ",
                                  to_gib(plan.peak()), to_gib(fitter.available))};
  add_advice(text, fitter, way);
  throw InputError(Setting::of("device", "cpu"), std::move(text));
}

}  // namespace

void check_offload(OffloadWish wish, const MemoryBudget& budget) {
  if (wish != OffloadWish::layers || budget.device) return;
  throw InputError(Setting::of("offload", "layers"),
                   "the run is on the CPU, where the weights are in host memory anyway; expected "
                   "none or auto");
}

MemoryPlan fit_memory(const MemoryCosts& costs, const MemoryWishes& wishes,
                      const MemoryBudget& budget) {
  check_offload(wishes.offload, budget);
  if (wishes.offload == OffloadWish::layers && costs.offload.count == 0)
    throw InputError(Setting::of("offload", "layers"), "this model has no layers to offload");
  const std::vector<Way> ways = ways_to_try(wishes, costs, budget.limited);
  if (!budget.device) return fit_into_host(costs, ways.front(), budget);
  const Fitter fitter{costs, costs.size, *budget.device - kCudaBytes};
  MemoryPlan plan;
  for (const Way& way : ways) {
    plan = fitter.plan(way);
    if (fitter.fits(plan)) break;
  }
  if (!fitter.fits(plan)) {
    SettingText text = {fmt::format("this run needs {:.1f} GiB of GPU memory, {:.1f} GiB are {}; ",
                                    to_gib(plan.peak() + kCudaBytes), to_gib(*budget.device),
                                    budget.limited ? "allowed" : "free")};
    add_advice(text, fitter, ways.back());
    throw InputError(budget.limited ? Setting::of("max_vram") : Setting::of("device", "cuda"),
                     std::move(text));
  }
  check_host(plan, budget);
  return plan;
}

MemoryPlan refit_memory(const MemoryCosts& costs, const MemoryWishes& wishes,
                        const MemoryBudget& budget, const std::optional<OffloadChoice>& offload) {
  MemoryWishes rest = wishes;
  rest.offload = OffloadWish::none;
  const std::vector<Way> ways = ways_to_try(rest, costs, budget.limited);
  if (!budget.device) return fit_into_host(costs, ways.front(), budget);
  MemoryPlan plan;
  for (const Way& way : ways) {
    MemoryChoice choice = way.choice;
    choice.offload = offload;
    plan = costs.plan(choice, costs.size);
    if (plan.peak() + kCudaBytes <= *budget.device) return plan;
  }
  throw InputError(
      "this request needs {:.1f} GiB of GPU memory, {:.1f} GiB are {}, and the weights "
      "are loaded already; it may fit when it is the first, or alone",
      to_gib(plan.peak() + kCudaBytes), to_gib(*budget.device),
      budget.limited ? "allowed" : "free");
}

}  // namespace diptych
