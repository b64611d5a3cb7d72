//! `penstock._core`: the thin seam between Python and Rust. It takes and gives plain numbers and buffers; what is
//! comfortable lives in `python/penstock`. The surface is written down in `python/penstock/_core.pyi`.

mod buffers;
mod detach;
mod error;
mod exit;
mod job;
mod launcher;
mod link;
mod manager;
mod overlay;
mod rendezvous;
mod seconds;
mod server;
mod service;
mod table;
mod tensor;
mod tools;
mod xla;

use penstock_join::exchange::{MESSAGE_LIMIT, VERDICT_MARGIN};
use penstock_kernels::filter::sums::Quantize;
use penstock_proto::message::{MAX_SERVERS, MAX_WORKERS};
use penstock_proto::travel::Filtering;
use pyo3::prelude::*;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("MAX_WORKERS", MAX_WORKERS)?;
    module.add("MAX_SERVERS", MAX_SERVERS)?;
    module.add("MESSAGE_LIMIT", MESSAGE_LIMIT)?;
    module.add("VERDICT_MARGIN", VERDICT_MARGIN.as_secs_f64())?;
    module.add("AUTO_FILTER", Filtering::AUTO.settings)?;
    module.add("THRESHOLD", Quantize::THRESHOLD)?;
    module.add_class::<buffers::Memory>()?;
    module.add_class::<job::Job>()?;
    module.add_class::<tensor::Tensor>()?;
    module.add_class::<table::Table>()?;
    module.add_class::<table::TableCalls>()?;
    module.add_class::<table::View>()?;
    module.add_class::<server::Server>()?;
    module.add_class::<service::Service>()?;
    module.add_class::<manager::Manager>()?;
    module.add_class::<launcher::LauncherVariables>()?;
    module.add_class::<link::LinkSocket>()?;
    module.add_class::<overlay::OverlayPlanner>()?;
    module.add_class::<rendezvous::RendezvousRoot>()?;
    module.add_class::<rendezvous::RendezvousVisitor>()?;
    module.add_function(wrap_pyfunction!(exit::exit_with, module)?)?;
    module.add_function(wrap_pyfunction!(exit::leave_at_exit, module)?)?;
    module.add_function(wrap_pyfunction!(tools::host_id, module)?)?;
    module.add_function(wrap_pyfunction!(tools::warn_on_stderr, module)?)?;
    module.add_function(wrap_pyfunction!(tools::options, module)?)?;
    module.add_function(wrap_pyfunction!(tools::optimizers, module)?)?;
    module.add_function(wrap_pyfunction!(tools::check_options, module)?)?;
    module.add_function(wrap_pyfunction!(tools::stray_names, module)?)?;
    module.add_function(wrap_pyfunction!(tools::limit_pushpull, module)?)?;
    module.add_function(wrap_pyfunction!(tools::core_distance, module)?)?;
    module.add_function(wrap_pyfunction!(tools::cpu_features, module)?)?;
    module.add_function(wrap_pyfunction!(tools::first_nonfinite, module)?)?;
    module.add_function(wrap_pyfunction!(tools::checksum, module)?)?;
    module.add_function(wrap_pyfunction!(tools::is_interrupting, module)?)?;
    module.add_function(wrap_pyfunction!(seconds::seconds, module)?)?;
    module.add_function(wrap_pyfunction!(manager::create_job, module)?)?;
    module.add_function(wrap_pyfunction!(manager::list_jobs, module)?)?;
    module.add_function(wrap_pyfunction!(manager::show_job, module)?)?;
    module.add_function(wrap_pyfunction!(manager::delete_job, module)?)?;
    module.add_function(wrap_pyfunction!(manager::health, module)?)?;
    module.add_function(wrap_pyfunction!(manager::connect, module)?)?;
    module.add_function(wrap_pyfunction!(manager::options_under_manager, module)?)?;
    module.add_function(wrap_pyfunction!(manager::make_certificate, module)?)?;
    module.add_function(wrap_pyfunction!(rendezvous::rendezvous_address, module)?)?;
    module.add_function(wrap_pyfunction!(rendezvous::reachable, module)?)?;
    module.add_function(wrap_pyfunction!(rendezvous::introduction, module)?)?;
    module.add_function(wrap_pyfunction!(rendezvous::agree, module)?)?;
    module.add_function(wrap_pyfunction!(rendezvous::named_servers, module)?)?;
    module.add_function(wrap_pyfunction!(rendezvous::given, module)?)?;
    module.add_function(wrap_pyfunction!(rendezvous::failed, module)?)?;
    module.add_function(wrap_pyfunction!(rendezvous::is_failure, module)?)?;
    module.add_function(wrap_pyfunction!(rendezvous::verdict, module)?)?;
    module.add_function(wrap_pyfunction!(rendezvous::verdict_limit, module)?)?;
    module.add_function(wrap_pyfunction!(rendezvous::late_verdict, module)?)?;
    module.add_function(wrap_pyfunction!(rendezvous::judge, module)?)?;
    module.add_function(wrap_pyfunction!(overlay::least_depth, module)?)?;
    module.add_function(wrap_pyfunction!(xla::keep_xla_call, module)?)?;
    module.add_function(wrap_pyfunction!(xla::xla_target, module)?)?;
    module.add_function(wrap_pyfunction!(xla::xla_has_asked, module)?)?;
    Ok(())
}
