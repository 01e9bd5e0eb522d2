#include "lib/pipelines/wan/teacache.h"

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

TimestepTeaCacheConfig published_teacache(WanTeaCacheModel model, bool use_ret_steps) {
  const Published& published = published_of(model);
  TimestepTeaCacheConfig config;
  config.coefficients = use_ret_steps ? published.ret : published.non_ret;
  config.threshold = published.threshold;
  config.use_ret_steps = use_ret_steps;
  config.ret_steps = use_ret_steps ? 5 : 1;
  return config;
}

TimestepTeaCacheConfig preset_teacache(WanTeaCacheModel model) {
  return published_teacache(model, published_of(model).use_ret_steps);
}

}  // namespace diptych
