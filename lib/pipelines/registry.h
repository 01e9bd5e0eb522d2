// The families of models that this version knows.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/pipelines/family.h"

namespace diptych {

std::span<const Family* const> all_families();
// What they declare to the configuration, in the same order.
std::vector<const FamilyConfig*> all_family_configs();
// Throws InputError for an unknown name; lists the known ones.
const Family& find_family(std::string_view name);
// A session of the family that the config names. Where config.read_device is given and no process
// does the other half, it has two models: one reads, the other one paints. Throws as Family::open.
std::unique_ptr<Session> open_session(const RunConfig& config, Log& log);
// The family whose checkpoint the folder holds; null where none knows it. Throws InputError for a
// config file that cannot be read.
const Family* family_of_checkpoint(const std::filesystem::path& folder);
// The names of the family that knows most of these recorded tensors; empty lists where none knows
// any.
TraceNames trace_names_of(std::span<const std::string> tensors);

}  // namespace diptych
