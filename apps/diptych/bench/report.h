// What `diptych bench` says: a table for people, and JSON with everything needed to run it again.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "apps/diptych/bench/run.h"

namespace diptych {

std::string bench_table(const BenchPlan& plan, const BenchResult& result);
// Schema "diptych.bench". Times in seconds, memory in bytes; of paths only the last name.
nlohmann::ordered_json bench_json(const BenchPlan& plan, const BenchResult& result);

}  // namespace diptych
