#include "lib/sampling/step_cache/wan_teacache.h"

#include <c10/util/Exception.h>

namespace diptych {
namespace {

struct Published {
  StepCacheCoefficients ret, non_ret;
  double threshold;
  bool use_ret_steps;  // by default
};

// Coefficients: ali-vilab/TeaCache, TeaCache4Wan2.1/teacache_generate.py. Thresholds and which of
// the two is the default: hao-ai-lab/FastVideo 1, fastvideo/configs/sample/wan.py.
constexpr std::array<Published, kChoiceNames<WanTeaCacheModel>.size()> kPublished = {{
    {{-5.21862437e4, 9.23041404e3, -5.28275948e2, 1.36987616e1, -4.99875664e-2},
     {2.39676752e3, -1.31110545e3, 2.01331979e2, -8.29855975, 1.37887774e-1},
     0.08,
     true},
    {{-3.03318725e5, 4.90537029e4, -2.65530556e3, 5.87365115e1, -3.15583525e-1},
     {-5784.54975374, 5449.50911966, -1811.16591783, 256.27178429, -13.02252404},
     0.20,
     false},
    {{2.57151496e5, -3.54229917e4, 1.40286849e3, -1.35890334e1, 1.32517977e-1},
     {-3.02331670e2, 2.23948934e2, -5.25463970e1, 5.87348440, -2.01973289e-1},
     0.26,
     true},
    {{8.10705460e3, 2.13393892e3, -3.72934672e2, 1.66203073e1, -4.17769401e-2},
     {-114.36346466, 65.26524496, -18.82220707, 4.91518089, -0.23412683},
     0.30,
     true},
}};

const Published& published_of(WanTeaCacheModel model) {
  return kPublished.at(static_cast<std::size_t>(model));
}

}  // namespace

WanTeaCacheConfig WanTeaCacheConfig::published(WanTeaCacheModel model, bool use_ret_steps) {
  const Published& published = published_of(model);
  WanTeaCacheConfig config;
  config.coefficients = use_ret_steps ? published.ret : published.non_ret;
  config.threshold = published.threshold;
  config.use_ret_steps = use_ret_steps;
  config.ret_steps = use_ret_steps ? 5 : 1;
  return config;
}

WanTeaCacheConfig WanTeaCacheConfig::preset(WanTeaCacheModel model) {
  return published(model, published_of(model).use_ret_steps);
}

void WanTeaCacheConfig::check() const {
  StepCacheConfig{StepCacheMode::teacache, threshold, coefficients}.check();
}

WanTeaCacheRule::WanTeaCacheRule(const WanTeaCacheConfig& config, std::int64_t steps)
    : config_(config), steps_(steps) {
  config.check();
}

bool WanTeaCacheRule::begin_call(std::int64_t step, Branch branch,
                                 const std::function<double()>& change) {
  double& sum = sums_.at(static_cast<std::size_t>(branch));
  const bool is_first = step == 0 || step < config_.ret_steps;
  const bool is_last = !config_.use_ret_steps && step == steps_ - 1;
  if (!is_first && !is_last) {
    // Unlike TeaCacheRule this takes estimates below 0 as they are. NaN computes.
    sum += evaluate(config_.coefficients, change());
    if (sum < config_.threshold) return false;
  }
  sum = 0;
  return true;
}

std::vector<bool> plan_wan_teacache(const WanTeaCacheConfig& config, const Tensor& modulations) {
  TORCH_CHECK(modulations.dim() == 2, "[teacache] modulations ", modulations.sizes());
  const std::int64_t steps = modulations.size(0);
  const Tensor rows = modulations.to(at::kCPU);
  WanTeaCacheRule rule(config, steps);
  std::vector<bool> computed;
  for (std::int64_t i = 0; i < steps; ++i) {
    computed.push_back(rule.begin_call(i, WanTeaCacheRule::Branch::cond, [&] {
      return relative_change(rows[i], rows[i - 1]).item<double>();
    }));
  }
  return computed;
}

}  // namespace diptych
