"""Every bound in one place: floats in, floats out. `check` in ``conditions`` says whether each one's
premises are met.

``drift`` how far from the anchor, ``transfer`` what earlier tasks lose or gain, ``convergence`` where the
rounds converge to, ``paper`` the printed statements.
"""

from fedspecial.theory.convergence import (
    Surrogate,
    SurrogateTerms,
    contraction_factor,
    lam_for_mu,
    quadratic_stationary,
    surrogate,
    surrogate_bound,
    task_uniform_bound,
)
from fedspecial.theory.drift import (
    drift_radius,
    drift_radius_clip,
    drift_radius_from_deltas,
    drift_step,
    geometric_limit,
    half_life,
    paper_drift_bound_sq,
    special_c_drift_radius,
)
from fedspecial.theory.paper import (
    PsiTerms,
    every_iterate_cap,
    paper_bkt_client_lr_max,
    paper_bkt_server_lr_max,
    paper_bkt_slack,
    paper_c12,
    paper_convergence_bound,
    paper_convergence_gap_term,
    paper_psi,
    paper_rate_radius,
    paper_rate_steps,
)
from fedspecial.theory.transfer import (
    bkt_slack,
    bkt_step_max,
    chained_forgetting_cap,
    forgetting_cap,
    old_grad_norm_upper,
    radius_for_budget,
    sigma_task_bound,
)

__all__ = [
    "PsiTerms",
    "Surrogate",
    "SurrogateTerms",
    "bkt_slack",
    "bkt_step_max",
    "chained_forgetting_cap",
    "contraction_factor",
    "drift_radius",
    "drift_radius_clip",
    "drift_radius_from_deltas",
    "drift_step",
    "every_iterate_cap",
    "forgetting_cap",
    "geometric_limit",
    "half_life",
    "lam_for_mu",
    "old_grad_norm_upper",
    "paper_bkt_client_lr_max",
    "paper_bkt_server_lr_max",
    "paper_bkt_slack",
    "paper_c12",
    "paper_convergence_bound",
    "paper_convergence_gap_term",
    "paper_drift_bound_sq",
    "paper_psi",
    "paper_rate_radius",
    "paper_rate_steps",
    "quadratic_stationary",
    "radius_for_budget",
    "sigma_task_bound",
    "special_c_drift_radius",
    "surrogate",
    "surrogate_bound",
    "task_uniform_bound",
]
