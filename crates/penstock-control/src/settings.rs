//! Settings of jobs, and those that none has.

use crate::proto::Setting;

/// Settings that belong to a process, or that a job sets in another way: none of them comes from a job.
const NOT_A_JOBS: [(&str, &str); 5] = [
    ("memory", "the job's quota sets it"),
    ("security", "each process sets it for itself"),
    ("ca", "each process sets it for itself"),
    ("certificate", "each server sets it for itself"),
    ("key", "each server sets it for itself"),
];

/// Why no job has this setting, if so.
pub(crate) fn why_no_jobs(name: &str) -> Option<&'static str> {
    NOT_A_JOBS.iter().find(|(known, _)| *known == name).map(|(_, why)| *why)
}

/// As they came.
pub(crate) fn pairs(settings: Vec<Setting>) -> Vec<(String, String)> {
    settings.into_iter().map(|setting| (setting.name, setting.value)).collect()
}

/// Of a job that is about to run here, without those that are not a job's: any worker that knows the secret could play the
/// manager to another, and must not decide its `security`.
pub(crate) fn of_a_job(settings: Vec<Setting>) -> Vec<(String, String)> {
    let (jobs, others): (Vec<_>, Vec<_>) =
        pairs(settings).into_iter().partition(|(name, _)| why_no_jobs(name).is_none());
    for (name, _) in others {
        tracing::warn!(option = name, "a manager sent a setting that no job has: it is left out");
    }
    jobs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_a_process_is_not_taken_from_a_managers_reply() {
        let setting = |name: &str| Setting { name: name.to_owned(), value: "1".to_owned() };
        let sent = ["security", "wait", "memory", "ca", "chunk", "certificate", "key"].map(setting);
        let kept: Vec<_> = of_a_job(sent.to_vec()).into_iter().map(|(name, _)| name).collect();
        assert_eq!(kept, ["wait", "chunk"]);
    }
}
